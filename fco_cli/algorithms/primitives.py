"""The names that the local steps are written in; `specialise` binds them to the problem at hand."""


def descend(state, query, batches, k, rate):
    """state <- state - rate * (gradient at `query` of the mean loss over batch k)."""
    raise NotImplementedError


def to_dual(w, geometry, out):
    """out = grad h(w)."""
    raise NotImplementedError


def to_primal(z, t, geometry, out):
    """out = grad (h + t psi)*(z)."""
    raise NotImplementedError


def free_primal(z, t, geometry, out):
    """out = grad h*(z): to_primal without psi."""
    raise NotImplementedError


def psi_subgradient(w, geometry, out):
    """out = a subgradient of psi at w, 0 where psi does not act."""
    raise NotImplementedError
