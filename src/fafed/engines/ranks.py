"""The processes ("ranks") of one run, started by torchrun, and their messages to each other.

Sums go through one all-reduce. Everything else goes from one rank to another as JSON and the bytes
of tensors. Nothing is pickled. An error on one rank reaches all ranks: a rank that stops with an
error writes it into torchrun's store. The other ranks find the connection closed and look there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator, Sequence
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from fafed.engines.worker_pool import cores
from fafed.errors import ConfigError, FafedError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

MEETING = 120.0  # seconds, at least, for all ranks to start: one may have more to load
ERROR = "fafed/error"  # the store's key of what a rank leaves with
ALIGNED = 8  # bytes: where a tensor may begin in a buffer


class Lost(FafedError):
    """Another rank has ended or does not answer."""


class RankFailed(FafedError):
    """Another rank had an error. The message says which rank and which error."""


class Ranks:
    """This process and its connection to the other ranks."""

    def __init__(self, rank: int, size: int, store: Store, timeout: float) -> None:
        self.rank = rank
        self.size = size
        self.store = store  # torchrun's key-value store, through which the ranks connect
        self.timeout = timeout
        self.cure = "What was finished is saved: the same command goes on"
        self.agreed: Exception | None = None  # the last error that all ranks have raised together

    def hosts(self, client: int, rank: int | None = None) -> bool:
        """Whether the rank hosts the client. Clients are assigned in turn, because neighbours often
        have the same size. So a cohort spreads evenly over the ranks."""
        return client % self.size == (self.rank if rank is None else rank)

    def device(self, wanted: str) -> str:
        """The device of this rank: for "cuda", its own GPU."""
        if torch.device(wanted).type != "cuda":
            return wanted
        local, there = int(os.environ.get("LOCAL_RANK", self.rank)), torch.cuda.device_count()
        if local >= there:
            raise ConfigError(
                f"device = {wanted!r}: this machine has {there} GPUs, none for its rank {local}; "
                f"start at most {there} with --nproc-per-node, or use device = 'cpu'"
            )
        torch.cuda.set_device(local)
        return f"cuda:{local}"

    def workers(self) -> int:
        """This rank's share of its machine's cores."""
        return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))

    # Communication. Every rank must make the same calls in the same order.

    def add(self, buffer: Tensor) -> Tensor:
        """The sum over all ranks, in place, with the same digits on each."""
        with self._listening():
            dist.all_reduce(buffer)
        return buffer

    def any(self, here: bool) -> bool:
        """Whether `here` is true on any rank."""
        return bool(self.add(torch.tensor([float(here)])).item())

    def tell(self, note: object = None, source: int = 0) -> Any:
        """Send a note from rank `source` to all ranks, and return it. It must fit into JSON."""
        if self.rank != source:
            return self.receive(source)[0]
        for other in range(self.size):
            if other != self.rank:
                self.send(other, note)
        return note

    def send(self, to: int, note: object, leaves: Sequence[Tensor] = ()) -> None:
        """Send a note and some tensors to one rank, which must `receive` them."""
        kinds = [[str(leaf.dtype).removeprefix("torch."), list(leaf.shape)] for leaf in leaves]
        text = bytearray(json.dumps([note, kinds]).encode())
        self._send(torch.tensor([len(text)]), to)
        self._send(torch.frombuffer(text, dtype=torch.uint8), to)
        if leaves:
            self._send(torch.cat([_bytes(leaf) for leaf in leaves]), to)

    def receive(self, source: int) -> tuple[Any, list[Tensor]]:
        """Receive a note and tensors from rank `source`."""
        (length,) = self._receive(torch.empty(1, dtype=torch.int64), source).tolist()
        text = self._receive(torch.empty(length, dtype=torch.uint8), source)
        note, kinds = json.loads(text.numpy().tobytes())
        likes = [
            torch.empty(shape, dtype=getattr(torch, name), device="meta") for name, shape in kinds
        ]
        sizes = [like.nbytes + -like.nbytes % ALIGNED for like in likes]
        buffer = self._receive(torch.empty(sum(sizes), dtype=torch.uint8), source)
        return note, [
            part[: like.nbytes].view(like.dtype).view(like.shape)
            for part, like in zip(torch.split(buffer, sizes), likes, strict=True)
        ]

    def _send(self, buffer: Tensor, to: int) -> None:
        if buffer.numel():
            with self._listening():
                dist.send(buffer, to)

    def _receive(self, buffer: Tensor, source: int) -> Tensor:
        if buffer.numel():
            with self._listening():
                dist.recv(buffer, source)
        return buffer

    # Errors.

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as cause:
            raise self._explained(
                "has lost another rank, which has ended or has not answered for "
                f"{self.timeout:g} s ({_short(cause)})"
            ) from cause

    def _explained(self, symptom: str) -> FafedError:
        """Why this rank must stop: the error of another rank, or else the symptom."""
        with contextlib.suppress(RuntimeError):  # the store may be gone as well
            if self.store.check([ERROR]):
                return RankFailed(self.store.get(ERROR).decode())
        return Lost(f"rank {self.rank} of {self.size} {symptom}. {self.cure}")

    def confess(self, error: BaseException) -> None:
        """Write the error of this rank into the store, for the other ranks."""
        text = f"rank {self.rank} has failed: {type(error).__name__}: {error}"
        with contextlib.suppress(RuntimeError):
            self.store.set(ERROR, text)

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM."""
        raise self._explained(
            "was stopped by torchrun, as all are when one of them has ended or torchrun is stopped"
        )


@contextlib.contextmanager
def joined(timeout: float) -> Iterator[Ranks]:
    """Connect to the other ranks. Disconnect at the end, whatever happens."""
    missing = [n for n in ("RANK", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} is set, but not {', '.join(missing)}: start "
            "with `torchrun --nproc-per-node N -m fafed ...`, or unset WORLD_SIZE to run alone"
        )
    ranks = _met(timeout)
    before = signal.signal(signal.SIGTERM, ranks.stop)
    try:
        yield ranks
    except BaseException as error:
        before = signal.SIG_IGN  # this rank's error must still reach the store
        signal.signal(signal.SIGTERM, before)
        if ranks.agreed and ranks.agreed in (error, error.__cause__):
            with contextlib.suppress(FafedError):  # torchrun stops all ranks when one ends
                ranks.add(torch.zeros(1))
        elif not isinstance(error, Lost | RankFailed):
            ranks.confess(error)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        dist.destroy_process_group()


def _met(timeout: float) -> Ranks:
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    wait, patience = timedelta(seconds=timeout), timedelta(seconds=max(timeout, MEETING))
    cuda = torch.cuda.is_available()
    if cuda:  # a time-out becomes an exception rather than the end of the process
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    try:
        store, rank, size = next(rendezvous("env://", timeout=patience))
        if os.environ.get("GROUP_WORLD_SIZE") == "1":  # one machine
            # torchrun keeps the store when it starts ranks again (pytorch/pytorch#135712)
            store = PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
        store.set(f"rank {rank}", "is here")
        store.wait([f"rank {other}" for other in range(size)], patience)
        backend = "cpu:gloo,cuda:nccl" if cuda and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    except (RuntimeError, ValueError) as cause:
        raise Lost(
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} did not meet the others at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} within {patience.seconds} s "
            f"({_short(cause)}). Start all ranks together, with an address that all of them reach; "
            "GLOO_SOCKET_IFNAME names the network interface if there are several"
        ) from cause
    return Ranks(rank, size, store, timeout)


def _short(cause: Exception) -> str:
    """The first line of a torch error, without its source location and advice."""
    first = (str(cause).splitlines() or [type(cause).__name__])[0]
    return re.sub(r"\[/\S+\] ", "", first).split(". ")[0]


def _bytes(leaf: Tensor) -> Tensor:
    plain = leaf.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return torch.nn.functional.pad(plain, (0, -len(plain) % ALIGNED))
