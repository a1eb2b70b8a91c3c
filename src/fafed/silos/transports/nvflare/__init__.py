"""NVIDIA FLARE as the carrier between real silos: the only place that knows its types.

Which of FLARE's interfaces, and why (2.9.0 on loopback with mutual TLS; seconds of one round
without computation, on two busy cores, few repetitions):

* Tasks (ModelController and Executor, and with them the Client API): sites poll for work. 2.0 s an
  empty round with three sites; 0.20 s with `task_request_interval` set to 0.1.
* Collab: the server calls the sites. 0.07 s an empty round with two. But a job whose sites do not
  all come within a minute is ended, a lost site is only known by its time-out, and one of four
  starts in the simulator failed under load.
* Requests between the cells of the job's processes, which is what Collab and FLARE's auxiliary
  messages are made of, without the start of the one and the packing of the other. 0.03 s with three
  sites and 106 kB each way (`studies/performance/silos/overhead.py`), and each answer is ours to
  wait for, with a deadline, or to do without. This is what we use, also to ask whether a silo that
  has not answered still lives.

The first two were timed by themselves and earlier, so the seconds are magnitudes, not a race.

What travels is byte strings, which FLARE leaves as they are: nothing is pickled (in 2.9.0 nothing
outside its app_opt imports pickle).
"""
