"""Scores and gradients of a `torch.nn.Module` for the jobs of a stack.

Parameters are rows of w [J, P]. The derivatives of the loss by the scores come from the caller, as NumPy arrays: losses
are kernels. `JobByJob` evaluates one job after another, so that a job gives the same bits alone and in a stack.
`AllJobs` evaluates the stack together; its bits depend on the number of jobs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from fco_cli.problem.layout import Array, Layout
from fco_cli.problem.models.torch_layers import Tensor, layers_of

# Overwrites the scores [n, C, B] of jobs first, ..., first + n - 1 by the derivatives of the loss, or records them.
Slopes = Callable[[Array, int], None]


class Evaluation(ABC):
    """Scores and gradients of a module; `seed` is that of its random numbers, None if it draws none."""

    def __init__(self, module: Any, layout: Layout, outputs: int) -> None:
        self.module, self.layout, self.outputs = module, layout, outputs
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.slices = [layout.slices[name] for name in self.parameters]
        self.seed: int | None = None

    @abstractmethod
    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the scores [J, C, B] of rows x for parameters w [J, P]."""

    @abstractmethod
    def add_gradients(self, w: Tensor, x: Tensor, slopes: Slopes, out: Tensor) -> None:
        """Add the gradients [J, P] of the sum over rows and scores of slope times score to `out`, which may be w."""

    def _seed(self) -> None:
        if self.seed is not None:
            import torch

            torch.manual_seed(self.seed)


class JobByJob(Evaluation):
    """Evaluation of one job at a time; the module's parameters are views of one aligned vector."""

    def __init__(self, module: Any, layout: Layout, outputs: int) -> None:
        super().__init__(module, layout, outputs)
        first = next(iter(self.parameters.values()))
        self._flat = first.new_empty(layout.size, requires_grad=False)
        for name, parameter in self.parameters.items():
            view = self._flat[layout.slices[name]].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view

    def _forward(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the scores [B, C] of one job."""
        self._flat.copy_(w)
        self._seed()
        return self.module(x).reshape(len(x), self.outputs)

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        import torch

        with torch.no_grad():
            return torch.stack([self._forward(own, x).T for own in w])

    def add_gradients(self, w: Tensor, x: Tensor, slopes: Slopes, out: Tensor) -> None:
        import torch

        parameters = list(self.parameters.values())
        for j in range(len(w)):
            scores = self._forward(w[j], x)
            own = scores.detach().T.clone(memory_format=torch.contiguous_format).cpu()
            slopes(own.numpy()[None], j)
            above = own.to(scores.device).T
            gradients = torch.autograd.grad(scores, parameters, above, allow_unused=True)
            for part, gradient in zip(self.slices, gradients, strict=True):
                if gradient is not None:
                    out[j, part] += gradient.reshape(-1)


class AllJobs(Evaluation):
    """Evaluation of all jobs together: dense layers by products of matrices, others by `torch.func.vmap`."""

    def __init__(self, module: Any, layout: Layout, outputs: int) -> None:
        super().__init__(module, layout, outputs)
        self._layers = layers_of(module, layout)

    def _forward(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return the scores [J, B, C] for parameters [J, ...] by name."""
        import torch

        def one(own: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(self.module, own, (x,)).reshape(len(x), self.outputs)

        self._seed()
        return torch.func.vmap(one, randomness="same")(parameters)

    def _split(self, w: Tensor) -> dict[str, Tensor]:
        """Return the parameters [J, ...] by name."""
        parts = zip(self.parameters.items(), self.slices, strict=True)
        return {name: w[:, part].reshape(len(w), *p.shape).detach() for (name, p), part in parts}

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        import torch

        with torch.no_grad():
            scores = self._forward(self._split(w), x) if self._layers is None else self._layers.forward(w, x)[0]
            return scores.transpose(1, 2)

    def add_gradients(self, w: Tensor, x: Tensor, slopes: Slopes, out: Tensor) -> None:
        import torch

        if self._layers is not None:
            with torch.no_grad():
                scores, inputs = self._layers.forward(w, x)
                self._layers.add_gradients(w, inputs, _slopes_at(scores, slopes), out)
            return
        parameters = {name: values.requires_grad_() for name, values in self._split(w).items()}
        scores = self._forward(parameters, x)
        above = _slopes_at(scores, slopes)
        gradients = torch.autograd.grad(scores, list(parameters.values()), above, allow_unused=True)
        for part, gradient in zip(self.slices, gradients, strict=True):
            if gradient is not None:
                out[:, part] += gradient.reshape(len(w), -1)


def _slopes_at(scores: Tensor, slopes: Slopes) -> Tensor:
    """Return the derivatives of the loss at scores [J, B, C]."""
    import torch

    own = scores.detach().transpose(1, 2).clone(memory_format=torch.contiguous_format).cpu()
    slopes(own.numpy(), 0)
    return own.to(scores.device).transpose(1, 2)
