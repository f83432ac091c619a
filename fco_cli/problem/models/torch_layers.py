"""Scores and gradients of a sequence of dense layers for all jobs of a stack, by products of matrices.

This needs no graph of operations, whose construction would take longer than the products of small layers.
"""

from __future__ import annotations

from typing import Any

from fco_cli.problem.layout import Layout

Tensor = Any  # torch.Tensor; torch is imported late


class Layers:
    """Dense layers, with functions of single numbers between them."""

    def __init__(self, layers: list[tuple[str, Any]], layout: Layout) -> None:
        self.layers, self.layout = layers, layout

    def _view(self, vectors: Tensor, name: str) -> Tensor:
        """Return the block `name` of vectors [J, P] as [J, ...], without a copy."""
        block = next(block for block in self.layout.blocks if block.name == name)
        return vectors[:, self.layout.slices[name]].unflatten(1, block.shape)

    def forward(self, w: Tensor, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the scores [J, B, C] of rows x [B, d] for parameters w [J, P], and the inputs of all layers."""
        inputs, values = [], x
        for name, layer in self.layers:
            inputs.append(values)
            if not name:
                values = layer(values)
                continue
            weight = self._view(w, f"{name}weight"[1:])
            if values.ndim == 2:  # the rows are those of all jobs: one product
                values = (values @ weight.flatten(0, 1).T).unflatten(1, weight.shape[:2]).transpose(0, 1)
            else:
                values = values @ weight.transpose(1, 2)
            if layer.bias is not None:
                values = values + self._view(w, f"{name}bias"[1:])[:, None]
        return values, inputs

    def add_gradients(self, w: Tensor, inputs: list[Tensor], above: Tensor, out: Tensor) -> None:
        """Add the products of `above` [J, B, C] and the derivatives of the scores to `out` [J, P], which may be w."""
        sums = []
        for k, ((name, layer), values) in reversed(list(enumerate(zip(self.layers, inputs, strict=True)))):
            if not name:
                above = _pull_back(layer, values, above)
                continue
            across = above.transpose(1, 2)
            product = across.flatten(0, 1) @ values if values.ndim == 2 else across @ values
            sums.append((f"{name}weight"[1:], product))
            if layer.bias is not None:
                sums.append((f"{name}bias"[1:], above.sum(1)))
            if k > 0 and values.ndim == 3:
                above = above @ self._view(w, f"{name}weight"[1:])
            elif k > 0:
                break  # the layers before act on the rows only
        for name, total in sums:
            out[:, self.layout.slices[name]] += total.reshape(len(w), -1)


def _pull_back(layer: Any, values: Tensor, above: Tensor) -> Tensor:
    """Return `above` times the derivative of a layer without parameters."""
    import torch

    with torch.enable_grad():
        values = values.detach().requires_grad_()
        return torch.autograd.grad(layer(values), values, above)[0]


def layers_of(module: Any, layout: Layout) -> Layers | None:
    """Return the layers of a dense layer or of a sequence; None for a module with others.

    The name of a dense layer is its prefix of parameters after a dot, that of others is empty.
    """
    from torch import nn

    elementwise = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Softplus, nn.Identity)
    children: list[tuple[str, Any]] = [("", module)] if type(module) is nn.Linear else []
    if type(module) is nn.Sequential:
        children = [(f"{name}.", layer) for name, layer in module.named_children()]
    is_known = all(type(layer) in (nn.Linear, *elementwise) and not _has_hooks(layer) for _, layer in children)
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    has_all = trained == {name for name, _ in module.named_parameters(remove_duplicate=False)}
    if not children or not is_known or not has_all or _has_hooks(module):
        return None
    return Layers([(f".{name}" if type(layer) is nn.Linear else "", layer) for name, layer in children], layout)


def _has_hooks(module: Any) -> bool:
    """Return True if other functions change the inputs, outputs or parameters of a module, as in spectral_norm."""
    return bool(module._forward_hooks or module._forward_pre_hooks or hasattr(module, "parametrizations"))
