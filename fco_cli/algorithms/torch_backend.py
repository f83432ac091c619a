"""PyTorch backend: the text of an algorithm on tensors, for models that are `torch.nn.Module`s.

The operations are the reference definitions of ops.py, which tensors support as well, except for a few that create or
fill tensors. On the CPU, messages and memory are NumPy arrays with the tensors as views, and the maps of psi and h are
those of the compiled kernels. On other devices messages and memory are copied once per client and round, and the
vectors of psi and h at every call of their maps, which run on the CPU.

Every update is a product followed by a sum, each rounded once, so that bits do not depend on the number of jobs.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from fco_cli.algorithms import ops as reference
from fco_cli.algorithms.arrays import views
from fco_cli.algorithms.round import FederatedRound
from fco_cli.errors import UserError
from fco_cli.kernels.compiled import Kernel, Namespace, specialize
from fco_cli.kernels.named import named
from fco_cli.problem.descent import row_loop
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror import Geometry
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.models.torch_evaluation import Tensor
from fco_cli.problem.models.torch_model import ROWS_AT_A_TIME, TorchModel
from fco_cli.problem.problem import Problem


def copy(source):
    """Return a copy of `source`."""
    return source.clone()


def buffer_like(source):
    """Return a tensor in the shape of `source` with undefined content."""
    return source.new_empty(source.shape)


def zeros_like(source):
    """Return zeros in the shape of `source`."""
    return source.new_zeros(source.shape)


def to_primal(target, z, t, geometry):
    """target <- grad (h + t psi)*(z), written in place."""
    geometry.write_primal(target, z, t)


def dual_gradient_step(z, t, geometry, batches, k, rate, primal):
    """z <- z - rate * g, where g is the gradient at to_primal(z, t) of the mean loss over batch k."""
    to_primal(primal, z, t, geometry)
    gradient_step(z, primal, batches, k, rate)


def gradient_step(state, query, batches, k, rate):
    """state <- state - rate * g, where g is the gradient at `query` of the mean loss over batch k, without a copy."""
    batches.add_gradient(state, query, k, -rate)


def as_dual(w, geometry, buffer):
    """Return grad h(w): w itself if h is Euclidean."""
    if geometry.is_euclidean:
        return w
    reference.to_dual(buffer, w, geometry)
    return buffer


def operations() -> Namespace:
    """Return the operations of ops.py on tensors."""
    defined = {name: item for name, item in vars(reference).items() if inspect.isfunction(item)}
    own = copy, buffer_like, zeros_like, to_primal, dual_gradient_step, gradient_step, as_dual
    return Namespace("ops", defined | {function.__name__: function for function in own})


class TorchGeometry:
    """The maps of h and psi on tensors, by the kernels of the problem."""

    def __init__(self, problem: Problem, geometry: Geometry, psi_in_steps: bool) -> None:
        self.problem, self.geometry = problem, geometry
        self.is_euclidean = isinstance(problem.mirror, Euclidean)
        self._primal = problem.to_primal if psi_in_steps else problem.free_primal

    def _call(self, kernel: Any, out: Tensor, *arguments: Tensor | Geometry) -> Tensor:
        """Call a kernel with tensors as arrays (`out` last); copy those of other devices."""
        own = out if shares_memory(out) else out.to("cpu", copy=True)
        kernel(*(one if isinstance(one, Geometry) else one.cpu().numpy() for one in arguments), own.numpy())
        return own if own is out else out.copy_(own)

    def write_primal(self, target: Tensor, z: Tensor, t: Tensor) -> None:
        self._call(self._primal, target, z, t, self.geometry)

    def to_dual(self, w: Tensor) -> Tensor:
        if self.is_euclidean:
            return w
        return self._call(self.problem.to_dual, w.new_empty(w.shape), w, self.geometry)

    def to_free_primal(self, z: Tensor) -> Tensor:
        if self.is_euclidean:
            return z
        zero = z.new_zeros(len(z))
        return self._call(self.problem.free_primal, z.new_empty(z.shape), z, zero, self.geometry)

    def to_primal_in_ball(self, z: Tensor, t: Tensor, center: Tensor, radius: Tensor) -> Tensor:
        own = z.new_empty(z.shape).cpu()
        arrays = [one.cpu().numpy() for one in (z, t, center, radius)]
        self.problem.primal_in_l1_ball(*arrays[:2], self.geometry, *arrays[2:], own.numpy())
        return own.to(z.device)

    def assign_subgradient(self, target: Tensor, w: Tensor) -> None:
        self._call(self.problem.psi_subgradient, target, w, self.geometry)

    def assign_linear_minimizer(self, target: Tensor, g: Tensor) -> None:
        self._call(self.problem.linear_minimization_oracle, target, g, self.geometry)


class TorchBatches:
    """Batches of one client: batch k has the rows order[edges[k]:edges[k + 1]] of x and y."""

    def __init__(self, loop: TorchClients, x: Array, y: Array, order: Array, edges: Array, key: int) -> None:
        self._loop, self._x, self._y, self._order, self._edges, self._key = loop, x, y, order, edges, key
        self.steps = len(edges) - 1

    def add_gradient(self, target: Tensor, w: Tensor, k: int, factors: Tensor) -> None:
        """Add factors [J] times the gradients at w [J, P] of the mean loss over batch k to `target`, which may be w."""
        rows = self._order[self._edges[k] : self._edges[k + 1]]
        self._add(target, w, rows, k, factors.cpu().numpy())

    def full_gradient(self, w: Tensor) -> Tensor:
        """Return the gradients [J, P] of the mean loss over all rows."""
        gradient = w.new_zeros(w.shape)
        self._add(gradient, w, np.arange(len(self._y)), self.steps, np.ones(len(w), w.cpu().numpy().dtype))
        return gradient

    def _add(self, target: Tensor, w: Tensor, rows: Array, k: int, factors: Array) -> None:
        model, slopes_of, count = self._loop.model, self._loop.slopes_of, len(rows)
        if model.is_random:
            model.evaluation.seed = (self._key + k) % 2**63
        factors = factors[:, None, None] / count
        at_a_time = count if self._loop.couples_rows else ROWS_AT_A_TIME
        w = w.clone() if count > at_a_time else w  # the target may be w
        for low in range(0, count, at_a_time):
            part = rows[low : low + at_a_time]

            def slopes(scores: Array, first: int, part: Array = part) -> None:
                slopes_of(scores, self._y, part, None, True)
                scores *= factors[first : first + len(scores)]

            model.add_gradients(w, self._x, part, slopes, target)
        model.evaluation.seed = None

    def _refuse(self, *_: Any) -> None:
        raise UserError("algo: methods with moments or Hessians need a linear model; model=torch has gradients only")

    assign_moments = assign_curvature = loss = _refuse


class TorchClients:
    """Loop over the clients of a cohort, in place of the kernel `run_clients` of numba_backend.py."""

    model: TorchModel
    slopes_of: Kernel  # the loop over the rows of a batch that overwrites scores by derivatives of the loss
    couples_rows: bool  # True if a batch must contain all rows of a client
    geometry: TorchGeometry

    def __init__(self, algorithm: FederatedRound) -> None:
        problem = algorithm.problem
        assert isinstance(problem.model, TorchModel)
        self.algorithm: FederatedRound = algorithm
        self.model = problem.model
        self.geometry = TorchGeometry(problem, algorithm.geometry, algorithm.psi_in_steps)
        self.slopes_of = row_loop(problem.data, problem.model, problem.loss)
        self.couples_rows = problem.loss.client_loss is not None
        own = operations()
        self.local_steps: Any = specialize(algorithm.steps_kernel, ops=own).as_python
        self.remember: Any = specialize(algorithm.remember, ops=own).as_python

    def __call__(
        self, received: Any, memory: Array, messages: Array, rate: Array, options: Any, x: Array, y: Array,
        offsets: Array, clients: Array, order: Array, edges: Array, first: Array, widths: Array, geometry: Geometry,
        numbers: Any, keys: Array, noise: Any, remembered: int,
    ) -> None:  # fmt: skip
        model, algorithm = self.model, self.algorithm
        own_options = named(tuple(options.dtype.names))(
            *(model.to_tensor(options[key].copy()) for key in options.dtype.names)
        )
        own_rate = model.to_tensor(rate)
        broadcast = type(received)(*(model.to_tensor(values) for values in received))
        with model.session(training=True):
            for i, m in enumerate(clients):
                low, high = offsets[m], offsets[m + 1]
                own_edges = edges[first[i] : first[i + 1] + 1]
                batches = TorchBatches(self, x[low:high], y[low:high], order, own_edges, int(keys[i]))
                memory_of, message = model.to_tensor(memory[i]), model.to_tensor(messages[i])
                own = _by_name(algorithm.remembered, memory_of), _by_name(algorithm.sent, message)
                self.local_steps(broadcast, *own, own_rate, own_options, batches, self.geometry)
                _store(memory_of, memory[i])
                _store(message, messages[i])
                algorithm.transform.encode(messages[i], memory[i, remembered:], numbers, keys[i])
                if not shares_memory(message):  # the transform has changed the message
                    message.copy_(model.to_tensor(messages[i]))
                self.remember(broadcast, *own, own_rate, own_options, batches.steps)
                _store_remembered(memory_of, memory[i], remembered)


def shares_memory(tensor: Tensor) -> bool:
    """Return True if tensors of NumPy arrays are views of them."""
    return tensor.device.type == "cpu"


def _store(tensor: Tensor, array: Array) -> None:
    if not shares_memory(tensor):
        array[:] = tensor.cpu().numpy()


def _store_remembered(tensor: Tensor, array: Array, remembered: int) -> None:
    """Store the algorithm's own slots; the others belong to the transform, which has changed them in `array`."""
    if not shares_memory(tensor):
        array[:remembered] = tensor[:remembered].cpu().numpy()


def _by_name(arrays: Any, buffer: Tensor) -> Any:
    own = views(arrays, buffer)
    return named(tuple(own))(**own)


def client_loop(algorithm: FederatedRound) -> TorchClients:
    """Return the loop over clients of a bound algorithm whose model is a `TorchModel`."""
    return TorchClients(algorithm)
