"""NVIDIA FLARE as a transport. Only this package uses FLARE's types.

FLARE has three interfaces that we could use. The times are seconds for one round without
computation: FLARE 2.9.0 on loopback with mutual TLS, on two busy cores, with few repetitions.

* Tasks (ModelController and Executor, and with them the Client API). Sites poll for work. An empty
  round with three sites takes 2.0 s, or 0.20 s with `task_request_interval` set to 0.1.
* Collab. The server calls the sites. An empty round with two sites takes 0.07 s. But a job ends if
  its sites do not all come within a minute, a lost site shows only by its time-out, and one of four
  starts in the simulator failed under load.
* Requests between the cells of the job's processes. (A cell is FLARE's messaging endpoint in one
  process.) Collab and FLARE's auxiliary messages are made of these, too, but add a start-up phase
  and packing. A round takes 0.03 s with three sites and 106 kB each way
  (`studies/performance/silos/overhead.py`). We can wait for each answer, with a deadline, or
  continue without it. We use this one, also to ask whether a silo that has not answered still runs.

The first two were measured separately and earlier, so compare only the magnitudes.

Messages are byte strings, which FLARE does not change. Nothing is pickled (in 2.9.0 nothing outside
its app_opt imports pickle).
"""
