"""Labels, colors and markers of experiments, algorithms and metrics, shared by figures, tables and pages."""

from __future__ import annotations

from dataclasses import dataclass

# Prefixes of the names of experiments with their own sections in a report.
SEARCH = "hidden_settings"  # search over settings that the paper leaves open
LEADERBOARD = "successors"  # comparison of all methods


@dataclass(frozen=True)
class AlgorithmStyle:
    """Label and line style of an algorithm.

    The colors of Okabe and Ito (2008) are distinguishable with color blindness; markers and dashes (lengths of
    dashes and gaps in line widths) are distinguishable in grayscale.
    """

    label: str
    color: str
    marker: str
    dashes: tuple[float, ...] = ()


ALGORITHMS = {
    "feddualavg": AlgorithmStyle("FedDualAvg", "#0072B2", "o"),
    "feddualavg_osp": AlgorithmStyle("FedDualAvg-OSP", "#56B4E9", "s", (5, 1)),
    "fedmid": AlgorithmStyle("FedMiD", "#D55E00", "^", (4, 1, 1, 1)),
    "fedmid_osp": AlgorithmStyle("FedMiD-OSP", "#E69F00", "D", (1.5, 1)),
    "fedavg": AlgorithmStyle("FedAvg", "#009E73", "v", (6, 2)),
    "fedavg_subgrad": AlgorithmStyle("FedAvg(∂)", "#CC79A7", "P", (3, 1, 3, 1, 1, 1)),
    # Later methods, one color per family.
    "scaffold": AlgorithmStyle("SCAFFOLD", "#332288", "o", (1, 1)),
    "scaffold_prox": AlgorithmStyle("SCAFFOLD-prox", "#332288", "s"),
    "zhj": AlgorithmStyle("ZHJ", "#332288", "D", (5, 1)),
    "feddualavg_cv": AlgorithmStyle("FedDualAvg-CV", "#332288", "^", (4, 1, 1, 1)),
    "scaffold_osp": AlgorithmStyle("SCAFFOLD-OSP", "#332288", "v", (1.5, 1)),
    "scaffnew": AlgorithmStyle("Scaffnew", "#AA4499", "*"),
    "fista": AlgorithmStyle("FISTA", "#AA4499", "o", (5, 1)),
    "feddr": AlgorithmStyle("FedDR", "#117733", "o"),
    "fedadmm": AlgorithmStyle("FedADMM", "#117733", "s", (5, 1)),
    "fedsplit": AlgorithmStyle("FedSplit", "#117733", "^", (4, 1, 1, 1)),
    "fast_fedda": AlgorithmStyle("Fast-FedDA", "#882255", "o"),
    "c_fedda": AlgorithmStyle("C-FedDA", "#882255", "s", (5, 1)),
    "mc_fedda": AlgorithmStyle("MC-FedDA", "#882255", "^", (4, 1, 1, 1)),
    "fedadam": AlgorithmStyle("FedAdam", "#999933", "o"),
    "fedyogi": AlgorithmStyle("FedYogi", "#999933", "s", (5, 1)),
    "fedadagrad": AlgorithmStyle("FedAdagrad", "#999933", "^", (4, 1, 1, 1)),
    "fedmid_osp_m": AlgorithmStyle("FedMiD-OSP-M", "#E69F00", "p"),
    "feddualavg_m": AlgorithmStyle("FedDualAvg-M", "#0072B2", "p", (5, 1)),
    "fedavgm": AlgorithmStyle("FedAvgM", "#009E73", "p", (1.5, 1)),
    "fedprox": AlgorithmStyle("FedProx", "#88CCEE", "d"),
    "fedfw": AlgorithmStyle("FedFW", "#661100", "h"),
    "ditto": AlgorithmStyle("Ditto", "#7F7F7F", "d", (5, 1)),
    "centralized": AlgorithmStyle("centralized", "#000000", "*"),
    "local": AlgorithmStyle("local", "#7F7F7F", "X", (2, 2)),
    "optimum": AlgorithmStyle("optimum", "#000000", "", (4, 2)),
}
FAMILIES = {  # groups of methods on the leaderboard; methods in no group belong to OTHERS
    "mirror descent and dual averaging": ("feddualavg", "feddualavg_osp", "fedmid", "fedmid_osp", "fedavg_subgrad"),
    "control variates": ("scaffold_prox", "zhj", "feddualavg_cv", "scaffold_osp", "scaffnew"),
    "splitting": ("feddr", "fedadmm", "fedsplit"),
    "strong convexity": ("fast_fedda", "c_fedda", "mc_fedda"),
    "server steps and FedProx": ("fedadam", "fedyogi", "fedadagrad", "fedmid_osp_m", "feddualavg_m", "fedprox"),
}
OTHERS = "others"
COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#332288",
    "#661100",
)  # for lines that are not algorithms
OPTIMUM = "optimum"  # the certified solution, the reference of all gaps


def algorithm_style(algo: str) -> AlgorithmStyle:
    """Return the style of an algorithm; unknown algorithms are labeled by their name."""
    return ALGORITHMS.get(algo, AlgorithmStyle(algo, "#4D4D4D", "h", (4, 1, 1, 1, 1, 1)))


def family_of(algo: str) -> str:
    return next((family for family, members in FAMILIES.items() if algo in members), OTHERS)


def algorithm_order(algo: str) -> tuple[int, str]:
    """Return a sort key in the order of ALGORITHMS; unknown algorithms come last."""
    names = list(ALGORITHMS)
    return (names.index(algo) if algo in names else len(names), algo)


@dataclass(frozen=True)
class MetricStyle:
    """Label and scale of a metric."""

    label: str
    log: bool = False


METRICS = {
    "objective": MetricStyle("training loss + ψ", log=True),
    "train_loss": MetricStyle("training loss", log=True),
    "validation_loss": MetricStyle("validation loss", log=True),
    "validation_objective": MetricStyle("validation loss + ψ", log=True),
    "kkt_residual": MetricStyle("KKT residual", log=True),
    "recovery_error": MetricStyle("recovery error", log=True),
    "train_accuracy": MetricStyle("training accuracy"),
    "validation_accuracy": MetricStyle("validation accuracy"),
    "validation_auc": MetricStyle("validation AUC"),
    "validation_r2": MetricStyle("validation R²"),
    "f1": MetricStyle("F1"),
    "density": MetricStyle("density"),
    "rank": MetricStyle("rank"),
}


def metric_style(metric: str) -> MetricStyle:
    return METRICS.get(metric, MetricStyle(metric.replace("_", " ")))
