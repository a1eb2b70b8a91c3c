"""What people know from other libraries, and fafed's word for it.

`fafed.start`, `fafed.train`, `fafed.compare` and all algorithms ask here about a name that they do
not know.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from fafed.errors import ConfigError, nearest

P = ParamSpec("P")
R = TypeVar("R")

# fafed's word, with a remark -> what others say.
_OTHERS = {
    "rounds, or local_epochs for passes over a client's data in each round": (
        "epochs num_epochs n_epochs max_epochs num_train_epochs iterations"
    ),
    "rounds": (
        "num_rounds n_rounds global_rounds global_epochs comm_round comm_rounds "
        "communication_rounds num_server_rounds"
    ),
    "local_epochs": "local_epoch num_local_epochs client_epochs inner_epochs",
    "local_steps": "steps num_steps max_steps num_local_steps local_iterations local_updates",
    "batch_size": "batch bs batchsize minibatch_size local_batch_size train_batch_size",
    "eta, a setting of the algorithm: fafed.FedAvg(eta=0.1)": (
        "lr learning_rate step_size local_lr client_lr local_learning_rate"
    ),
    "eta_g, a setting of the algorithm: fafed.FedAvg(eta_g=1.0)": (
        "server_lr server_learning_rate global_lr"
    ),
    "eta, which takes a schedule too: fafed.FedAvg(eta=fafed.schedules.Linear(peak=0.1))": (
        "scheduler lr_scheduler lr_schedule"
    ),
    "algorithm, the third argument: fafed.FedAvg(eta=0.1) makes steps of SGD, fafed.FedAdamW() of "
    "AdamW": "optimizer optimiser optim opt client_optimizer server_optimizer strategy aggregator",
    "server_momentum, a setting of the algorithm: fafed.FedAvg(server_momentum=0.9)": "momentum",
    "loss": "criterion loss_fn loss_func loss_function objective",
    "clients, a list with the data of each; there are as many as the list has": (
        "n_clients num_clients client_num num_users num_nodes"
    ),
    "clients, a list with the data of each; batch_size makes the batches": (
        "data dataset datasets train_data train_set trainset train_dataset client_data dataloader "
        "dataloaders train_loader train_loaders trainloader trainloaders train_dataloader"
    ),
    "test": "test_data test_set testset test_dataset test_loader testloader eval_dataset",
    "validation": "val val_data val_set valset val_dataset val_loader validation_data",
    "participation": (
        "fraction fraction_fit fraction_train client_fraction join_ratio sample_rate "
        "clients_per_round client_num_per_round"
    ),
    "failure": "drop_rate dropout_rate client_drop_rate",
    "clip": "max_grad_norm grad_clip clip_grad clip_norm gradient_clip_val max_norm",
    "weight_decay": "wd l2",
    "seed": "random_state random_seed manual_seed generator",
    "device": "gpu cuda use_cuda accelerator",
    'amp, as in amp="bf16"': "precision mixed_precision fp16 bf16 autocast dtype",
    "workers for threads that run clients, or data_workers for those that read a Dataset": (
        "num_workers n_workers n_jobs num_processes"
    ),
    "metrics": "metric eval_metrics compute_metrics",
    "eval_every": "eval_freq eval_interval evaluate_every test_every eval_gap",
    "folder, which also resumes": (
        "output_dir save_dir log_dir checkpoint_dir save_path resume resume_from"
    ),
    "checkpoint_every": "save_every save_freq save_interval",
    "track": "logger loggers report_to",
    "on_record": "callback callbacks",
    "quiet": "verbose progress progress_bar silent",
    "privacy, as in privacy=fafed.Privacy(...)": "dp differential_privacy epsilon noise_multiplier",
    'wire, as in wire=fafed.Wire("int8")': "compression compressor quantization",
    "model": "net network module",
}
OURS = {name: ours for ours, names in _OTHERS.items() for name in names.split()}


def cure(name: str, known: Iterable[str], *, elsewhere: bool = False) -> str:
    """What to write in place of a name that is not among the known ones. `elsewhere`: fafed's word
    may be one that is not known here, and then says where it belongs."""
    ours, known = OURS.get(name, ""), set(known)
    if ours and (elsewhere or ours.split()[0].rstrip(",") in known):
        return f"fafed's word is {ours}"
    return nearest(name, known)


def named(further: Iterable[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a function that users call: an error says which argument is wrong, and what to write.
    `further` are the names of its `**options`."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        where = f"fafed.{function.__name__}"
        parameters = inspect.signature(function).parameters
        own = {name: one for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD}
        known = {*own, *further}

        @functools.wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            for name, value in options.items():
                if name not in known:
                    told = f"{where} has no argument {name!r}, got {_short(value)}"
                    raise ConfigError(f"{told}: {cure(name, known, elsewhere=True)}")
            left = list(own.values())[len(args) :]
            for one in left:
                if one.default is one.empty and one.name not in options:
                    raise ConfigError(f"{where} needs {one.name}: give it, see help({where})")
            return function(*args, **options)

        return call

    return mark


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"
