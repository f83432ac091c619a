"""The option model=torch: any `torch.nn.Module` (docs/torch.md)."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from math import prod
from typing import TYPE_CHECKING, Any

from fco_cli.code_digest import Definition
from fco_cli.errors import UserError, require
from fco_cli.problem.data import SparseRows
from fco_cli.problem.models.choices import ModelChoice
from fco_cli.problem.models.linear import Model
from fco_cli.problem.models.torch_checks import check_layers, check_scores
from fco_cli.problem.models.torch_model import EVALUATIONS, TorchModel
from fco_cli.problem.models.torch_source import OBJECTS, Source, check_reference, load, require_torch
from fco_cli.problem.streams import MODEL, generator

if TYPE_CHECKING:
    from fco_cli.problem.problem import TaskData

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Torch(ModelChoice):
    """A `torch.nn.Module`, from a class or function that returns one.

    Its arguments are `options`; arguments with the names `features` and `outputs` receive the numbers of the task.
    """

    name: str = "torch"
    module: str  # FILE.py:NAME or MODULE:NAME
    options: Any = None  # arguments of the class or function by name; null: none
    input_shape: list[int] | None = None  # shape of a row, such as [1, 8, 8]; null: that of the task's rows
    device: str = "cpu"  # cpu, cuda, cuda:1, mps
    stack: str = "loop"  # jobs of a stack: loop, or vmap, whose last digits depend on the stack
    convex: bool = False  # type: ignore[misc]  # True: a convex loss of the scores is convex in the parameters

    def __post_init__(self) -> None:
        require_torch()
        self.module = check_reference(self.module)
        require(self.stack in EVALUATIONS, "model.stack", self.stack, "one of " + ", ".join(EVALUATIONS))
        is_mapping = self.options is None or isinstance(self.options, dict)
        require(is_mapping, "model.options", self.options, "null or arguments by name, such as {width: 32}")
        shape = self.input_shape
        is_shape = shape is None or (len(shape) > 0 and all(size >= 1 for size in shape))
        require(is_shape, "model.input_shape", shape, "null or a list of whole numbers >= 1, such as [1, 8, 8]")

    @cached_property
    def source(self) -> Source:
        return load(self.module)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without the loaded source, which another process loads itself."""
        return {key: value for key, value in vars(self).items() if key != "source"}

    def identity(self) -> dict[str, Any]:
        """Return the configuration without paths; with the version of PyTorch and the tensors that no seed determines.

        Those are constants and weights that the module reads from a file.
        """
        own = {key: value for key, value in asdict(self).items() if key != "module"}
        item = self.source.item
        kind = item if hasattr(item, "__qualname__") else type(item)
        constants = digest_of_constants(self.source, json.dumps(self.options or {}))
        return own | {"module": kind.__qualname__, **self.versions(), "constants": constants}

    def bound_classes(self) -> Iterable[type | Definition]:
        item = self.source.item
        yield item if hasattr(item, "__qualname__") else type(item)
        yield TorchModel.backend, "client_loop"  # imported by its name

    def files(self) -> dict[str, str]:
        return {} if self.source.path is None else {str(self.source.path): self.source.digest}

    def versions(self) -> dict[str, str]:
        return {"torch": version("torch")}

    def session_object(self) -> str:
        place, _, name = self.module.rpartition(":")
        return name if place == OBJECTS else ""

    def build_on(self, data: TaskData, seed: int) -> Model:
        """Return the module with the initial weights of the seed; raise UserError if it does not fit the data."""
        x, outputs = data.training.x, int(data.model.widths[-1])
        require(not isinstance(x, SparseRows), "model", self.name, "auto or linear: the task's rows are sparse")
        require(not data.model.site_bias, "model", self.name, "auto or linear with task.site_intercept=true")
        shape = tuple(self.input_shape or x.shape[1:])
        allowed = f"null or a shape with {prod(x.shape[1:])} entries, as a row of the task"
        require(prod(shape) == prod(x.shape[1:]), "model.input_shape", self.input_shape, allowed)
        self._check_device(x.dtype.name)
        known = {"features": prod(shape), "outputs": outputs}
        module = self.source.create(self.options or {}, known, int(generator(seed, MODEL).integers(2**63)))
        label = self.source.label
        check_layers(label, module)
        is_random = check_scores(label, module, x, shape, outputs, f"the {data.loss.name} loss")
        settings = self.convex or getattr(self.source.item, "convex", None) is True, is_random
        model = TorchModel(module, shape, outputs, x.dtype, self.device, self.stack, *settings)
        if self.stack == "vmap" and (reason := model.why_no_vmap(x)) is not None:
            log.warning("model.stack=vmap: %s: jobs are evaluated one by one, because %s", label, reason)
            model = TorchModel(module, shape, outputs, x.dtype, self.device, "loop", *settings)
        built: Any = model  # its functions are not kernels, as `Model` requires
        return built

    def _check_device(self, dtype: str) -> None:
        """Raise UserError unless the device can be used."""
        import torch

        try:
            kind = torch.device(self.device).type
        except RuntimeError:
            kind = ""
        require(kind in ("cpu", "cuda", "mps"), "model.device", self.device, "cpu, cuda, cuda:NUMBER or mps")
        available = torch.cuda.is_available() if kind == "cuda" else kind == "cpu" or torch.backends.mps.is_available()
        if not available:
            raise UserError(f"model.device: {self.device} is not available on this machine; use model.device=cpu")
        if kind == "cuda":
            count = torch.cuda.device_count()
            index = torch.device(self.device).index or 0
            require(index < count, "model.device", self.device, f"cuda:0 to cuda:{count - 1}")
        require(kind != "mps" or dtype == "float32", "hparams.dtype", dtype, "float32 with model.device=mps")


@functools.lru_cache(maxsize=16)
def digest_of_constants(source: Source, options: str) -> str:
    """Return the digest of a module's tensors that are equal for two seeds, for any numbers of features and outputs."""
    from torch.nn.parameter import is_lazy

    digest = hashlib.sha256()
    with suppress(UserError):  # the arguments are wrong, which `build_on` reports
        sizes = {"features": 1, "outputs": 1}
        first, second = (source.create(json.loads(options), sizes, seed).state_dict() for seed in (0, 1))
        for name, tensor in first.items():
            if not is_lazy(tensor) and tensor.equal(second[name]):
                digest.update(f"{name} {tuple(tensor.shape)} ".encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
