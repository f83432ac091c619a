"""Checks of regularizers: the proximal operator, subgradients and linear minimization oracles; see `check_regularizer`.

`prox`, `psi`, `subgradient` and `lmo` call a regularizer as algorithms do: for a stack of vectors, as one block of a
model with an intercept, which must not change.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from fco_cli.kernels.compiled import Kernel, specialize
from fco_cli.problem.layout import Array, Block, Layout, Numbers
from fco_cli.problem.mirror import Geometry, linear_minimization_oracle, psi_subgradient, psi_value, to_primal
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.regularizers import Regularizer
from fco_cli.testing.problems import kernels_as_python, make_regularizer, run_checks

Shape = tuple[int, ...]
SHAPE: Shape = (3, 4)
JOBS = 24
INTERCEPT = 7.0


def check_regularizer(
    regularizer: Regularizer | type[Regularizer], *, shape: Shape = SHAPE, compiled: bool = False
) -> None:
    """Check a regularizer: its prox, its value, and where declared its subgradient and linear minimization oracle.

    Parameters
    ----------
    regularizer
        An instance, or a class, which gets moderate values of its numbers.
    shape
        Shape of the block of weights.
    compiled
        If True, also compare the machine code with the reference. Compilation takes some seconds.

    Raises
    ------
    AssertionError
        With the name of the first check that fails.

    Examples
    --------
    >>> from fco_cli.problem.regularizers.penalties import L1
    >>> check_regularizer(L1(strength=0.5))  # doctest: +SKIP
    """
    psi = regularizer if isinstance(regularizer, Regularizer) else make_regularizer(regularizer)
    psi.check(shape)
    with kernels_as_python():
        run_checks(type(psi).__name__, REGULARIZER_CHECKS, psi, shape)
    if compiled:
        run_checks(type(psi).__name__, [check_machine_code], psi, shape)


# Calls of a regularizer.


def _call(
    template: Kernel, regularizer: Regularizer, w: Array, shape: Shape | None, numbers: Numbers | None
) -> Callable[..., Array]:
    """Return a function that calls the template with w [J, n] and an intercept, and checks the intercept."""
    layout = Layout((Block("weights", shape or w.shape[1:]), Block("bias", (1,), regularized=False)))
    numbers = np.repeat(regularizer.numbers, len(w)) if numbers is None else numbers
    each = regularizer.coordinate_numbers(layout).astype(w.dtype)
    geometry = Geometry(numbers, Euclidean().numbers, regularizer.table(layout), each)
    padded = np.hstack([w, np.full((len(w), 1), INTERCEPT, w.dtype)])

    def call(*between: Array, out: Array | None = None, intercept: float = INTERCEPT) -> Array:
        if out is not None:
            template(padded, *between, geometry, out)
            return out
        result = np.zeros_like(padded)
        template(padded, *between, geometry, result)
        assert (result[:, -1] == intercept).all(), "the intercept is changed"
        return result[:, :-1]

    return call


def prox(
    regularizer: Regularizer, z: Array, t: float | Array, shape: Shape | None = None, numbers: Numbers | None = None
) -> Array:
    """Return argmin_w t psi(w) + |w - z|^2 / 2 for every row of z [J, n]."""
    template = specialize(to_primal, on_block={"primal": Euclidean().primal(regularizer)})
    return _call(template, regularizer, z, shape, numbers)(np.broadcast_to(np.asarray(t, float), len(z)).copy())


def psi(regularizer: Regularizer, w: Array, shape: Shape | None = None, numbers: Numbers | None = None) -> Array:
    """Return psi of every row of w [J, n]."""
    template = specialize(psi_value, on_block={"value": regularizer.value})
    return _call(template, regularizer, w, shape, numbers)(out=np.zeros(len(w)))


def subgradient(
    regularizer: Regularizer, w: Array, shape: Shape | None = None, numbers: Numbers | None = None
) -> Array:
    """Return a subgradient of psi at every row of w [J, n]."""
    template = specialize(psi_subgradient, on_block={"subgradient": regularizer.subgradient})
    return _call(template, regularizer, w, shape, numbers)(intercept=0.0)


def lmo(regularizer: Regularizer, g: Array, shape: Shape | None = None, numbers: Numbers | None = None) -> Array:
    """Return argmin <g, w> over the constraint set for every row of g [J, n]."""
    template = specialize(linear_minimization_oracle, on_block={"lmo": regularizer.lmo})
    return _call(template, regularizer, g, shape, numbers)(intercept=0.0)


def points(shape: Shape = SHAPE, seed: int = 0, dtype: str = "float64") -> Array:
    """Return JOBS random points at several scales, with zeros and ties."""
    z = np.random.default_rng(seed).standard_normal((JOBS, int(np.prod(shape))))
    z *= np.repeat([0.01, 0.3, 2.0, 50.0], JOBS // 4)[:, None]
    z[::5, 3:6] = 0
    z[1::5] = np.round(z[1::5])
    z[2] = 0
    return z.astype(dtype)


def scale_numbers(numbers: Numbers, factor: float | Array, powers: dict[str, int]) -> Numbers:
    """Return the records with each parameter multiplied by factor ** power; the power is 1 if not in `powers`."""
    out = numbers.copy()
    for name in out.dtype.names or ():
        with np.errstate(over="ignore"):
            out[name] *= np.asarray(factor, float) ** powers.get(name, 1)
    return out


# Checks.


def check_properties(regularizer: Regularizer, shape: Shape = SHAPE) -> None:
    """Exactly the convex penalties have a subgradient, and exactly the separable ones act on each weight alone."""
    has_subgradient = regularizer.subgradient is not None
    assert has_subgradient != (regularizer.constraint or not regularizer.convex), (
        "a convex penalty needs a subgradient; a constraint or a non-convex penalty has none"
    )
    z = points(shape)[14]
    weights = regularizer.coordinate_numbers(Layout((Block("weights", shape),)))
    if not (weights == weights[0]).all():
        return
    whole, single = prox(regularizer, z[None], 0.6, shape), prox(regularizer, z[:, None], 0.6, (1, 1))
    assert np.array_equal(single[:, 0], whole[0]) == regularizer.separable, (
        "`separable` must be True if and only if the prox acts on each weight separately"
    )


def check_three_point_inequality(regularizer: Regularizer, shape: Shape = SHAPE) -> None:
    """The inequality that characterizes the prox holds at several t, for points in the domain of psi."""
    for t in (0.0, 0.05, 1.0, 20.0):
        z, w = points(shape), prox(regularizer, points(shape), t, shape)
        others = prox(regularizer, points(shape, 1), 1.0, shape)
        candidates = [others]
        if regularizer.convex:
            candidates.append((others + w) / 2)
        if not regularizer.constraint:
            candidates += [np.zeros_like(z), z]
        for u in candidates:
            assert_three_points(regularizer, z, u, t, shape)


def assert_three_points(regularizer: Regularizer, z: Array, u: Array, t: float, shape: Shape = SHAPE) -> None:
    """Assert t psi(w) + |w - z|^2 / 2 + |u - w|^2 / 2 <= t psi(u) + |u - z|^2 / 2 for the prox w of z.

    The last term on the left is due to strong convexity; it is omitted for a non-convex psi.
    """
    w = prox(regularizer, z, t, shape)
    assert np.isfinite(w).all(), f"the prox is not finite at t = {t}"
    left = t * psi(regularizer, w, shape) + ((w - z) ** 2).sum(1) / 2
    if regularizer.convex:
        left += ((u - w) ** 2).sum(1) / 2
    right = t * psi(regularizer, u, shape) + ((u - z) ** 2).sum(1) / 2
    assert (left <= right + 1e-12 * (1 + ((u - z) ** 2).sum(1) + np.abs(right))).all(), (
        f"at t = {t} the prox is not the minimizer of t psi(w) + |w - z|^2 / 2"
    )


def check_prox_at_zero(regularizer: Regularizer, shape: Shape = SHAPE) -> None:
    """For a penalty, t = 0 leaves z unchanged; a projection is idempotent and does not depend on t."""
    z = points(shape, 2)
    at_zero = prox(regularizer, z, 0.0, shape)
    if not regularizer.constraint:
        np.testing.assert_array_equal(at_zero, z, "t = 0 changes z")
        return
    np.testing.assert_array_equal(prox(regularizer, z, 3.0, shape), at_zero, "the projection depends on t")
    again = prox(regularizer, at_zero, 1.0, shape)
    np.testing.assert_allclose(again, at_zero, rtol=1e-12, atol=1e-12, err_msg="the projection is not idempotent")


def check_firmly_non_expansive(regularizer: Regularizer, shape: Shape = SHAPE) -> None:
    """|prox(x) - prox(y)|^2 <= <prox(x) - prox(y), x - y> for a convex psi."""
    if not regularizer.convex:
        return
    x, y = points(shape, 5), points(shape, 6)
    change = prox(regularizer, x, 0.7, shape) - prox(regularizer, y, 0.7, shape)
    is_firm = (change**2).sum(1) <= (change * (x - y)).sum(1) * (1 + 1e-12) + 1e-12
    assert is_firm.all(), "the prox of a convex psi must be firmly non-expansive"


def check_stack_equals_alone(regularizer: Regularizer, shape: Shape = SHAPE, dtype: str = "float64") -> None:
    """A job gives the same bits alone and in a stack, in which parameters and t differ between jobs."""
    random, z = np.random.default_rng(8), points(shape, 9, dtype)
    t = random.uniform(0, 2, JOBS)
    t[::4] = 0
    repeated = np.repeat(regularizer.numbers, JOBS)
    counts = {name: 0 for name in repeated.dtype.names or () if float(repeated[name][0]).is_integer()}
    numbers = scale_numbers(repeated, random.uniform(0.5, 1.5, JOBS), counts)
    in_stack, values = prox(regularizer, z, t, shape, numbers), psi(regularizer, points(shape, 9), shape, numbers)
    for j in range(JOBS):
        alone = prox(regularizer, z[[j]], t[[j]], shape, numbers[[j]])
        np.testing.assert_array_equal(alone[0], in_stack[j])
        assert psi(regularizer, points(shape, 9)[[j]], shape, numbers[[j]])[0] == values[j]


def check_divergence_is_preserved(regularizer: Regularizer, shape: Shape = SHAPE, dtype: str = "float64") -> None:
    """The prox of a vector with a NaN or infinite entry raises no error and is not finite."""
    random = np.random.default_rng(14)
    for t in (0.0, 0.5):
        for bad in (np.nan, np.inf, -np.inf):
            z = points(shape, 14, dtype)
            size = z.shape[1]
            for j in range(JOBS):  # one entry, two entries, ... all entries
                z[j, random.permutation(size)[: 1 + j % size]] = bad
            z[size:, 0] = -bad
            is_finite = np.isfinite(prox(regularizer, z, t, shape)).all(axis=1)
            assert not is_finite.any(), f"{bad} in z is lost; add 0 * z[i] to the result"
            psi(regularizer, z.astype(float), shape)


def check_huge_and_tiny_entries(regularizer: Regularizer, shape: Shape = SHAPE) -> None:
    """Entries of 1e-300 and 1e150 give finite results; a projection stays feasible."""
    for factor in (1e-300, 1e150):
        result = prox(regularizer, factor * points(shape, 15), 0.5, shape)
        assert np.isfinite(result).all(), f"the prox of entries of size {factor:g} is not finite"
        if regularizer.constraint:
            again = prox(regularizer, result, 0.5, shape)
            np.testing.assert_allclose(again, result, rtol=1e-9, atol=1e-9)


def check_subgradient(regularizer: Regularizer, shape: Shape = SHAPE) -> None:
    """psi(u) >= psi(w) + <g, u - w>, also where psi is not differentiable."""
    if regularizer.subgradient is None:
        return
    w, u = points(shape, 10), points(shape, 11)
    g, value = subgradient(regularizer, w, shape), psi(regularizer, w, shape)
    for other in (u, np.zeros_like(w), w + 1e-3 * u):
        left, right = psi(regularizer, other, shape), value + (g * (other - w)).sum(1)
        assert (left >= right - 1e-11 * (1 + np.abs(left) + np.abs(right))).all(), "not a subgradient of psi"


def check_linear_minimization_oracle(regularizer: Regularizer, shape: Shape = SHAPE) -> None:
    """lmo(g) is in the set and no point of the set has a smaller product with g; its result ignores the scale of g."""
    if regularizer.lmo is None:
        return
    g = points(shape, 16)
    w = lmo(regularizer, g, shape)
    np.testing.assert_allclose(prox(regularizer, w, 1.0, shape), w, rtol=1e-12, atol=1e-12, err_msg="outside the set")
    inside = prox(regularizer, points(shape, 18), 1.0, shape)
    least = (g * w).sum(axis=1, keepdims=True)
    assert (least <= g @ inside.T + 1e-9 * (1 + np.abs(least))).all(), "a point of the set has a smaller product with g"
    np.testing.assert_allclose(lmo(regularizer, 3.0 * g, shape), w, rtol=1e-9, atol=1e-12)
    for bad in (np.nan, np.inf, -np.inf):
        g[:, 3] = bad
        assert not np.isfinite(lmo(regularizer, g, shape)).all(axis=1).any(), f"{bad} in g is lost"


REGULARIZER_CHECKS: list[Callable[..., None]] = [
    check_properties,
    check_three_point_inequality,
    check_prox_at_zero,
    check_firmly_non_expansive,
    check_stack_equals_alone,
    check_divergence_is_preserved,
    check_huge_and_tiny_entries,
    check_subgradient,
    check_linear_minimization_oracle,
]


def check_machine_code(regularizer: Regularizer, shape: Shape = SHAPE) -> None:
    """Compiled kernels agree with the same kernels run as Python."""
    z, t = points(shape, 13), 0.5
    calls = [partial(prox, regularizer, z, t, shape), partial(psi, regularizer, z, shape)]
    calls += [partial(subgradient, regularizer, z, shape)] if regularizer.subgradient is not None else []
    calls += [partial(lmo, regularizer, z, shape)] if regularizer.lmo is not None else []
    for call in calls:
        with kernels_as_python():
            expected = call()
        with kernels_as_python(False):
            np.testing.assert_allclose(call(), expected, rtol=1e-10, atol=1e-12)
