"""Models as ONNX graphs in double precision.

Inputs are the columns of the table, each [N, 1]: tensor(double) for numbers and codes, tensor(string) for texts; NaN
and "" are missing. A model of a matrix has the input `x` [N, D]. Outputs are `prediction` [N] and, for classes,
`probabilities` [N, C].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fco_cli.data.expressions import Call, Column, Expression, Indicator, IsMissing, Number, Piecewise
from fco_cli.errors import UserError, install_extra
from fco_cli.export.model import InputColumn, PortableModel
from fco_cli.problem.layout import Array

OPSET, ML_OPSET, IR_VERSION = 17, 2, 8  # supported by ONNX Runtime from version 1.12 on
OPERATORS = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "power": "Pow", "negative": "Neg",
    "abs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
}  # fmt: skip
LOG_BASES = {"log2": 2.0, "log10": 10.0}


def as_onnx(model: PortableModel) -> bytes:
    """Return the model as an ONNX file."""
    try:
        import onnx
    except ImportError as problem:
        raise UserError(f"format: onnx is not installed; {install_extra('export')}") from problem
    if model.fold_case and any(column.type == "text" for column in model.columns):
        raise UserError("format: onnx cannot compare texts in any case (task.fold_case); use json or skops")
    graph = _Graph(onnx)
    scores = graph.scores(model)
    outputs = graph.outputs(model, scores)
    own = onnx.helper.make_graph(graph.nodes, "fco linear model", graph.inputs, outputs, graph.constants)
    opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    whole = onnx.helper.make_model(own, opset_imports=opsets, producer_name="fco", ir_version=IR_VERSION)
    onnx.checker.check_model(whole, full_check=True)
    return whole.SerializeToString(deterministic=True)


class _Graph:
    """Nodes, constants and inputs of a graph under construction; values are referred to by name."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.numbers: dict[str, str] = {}  # filled values by column, [N, 1]
        self.indicators: dict[str, tuple[str, list[str]]] = {}  # filled indicators [N, K] and their categories
        self.missing: dict[str, str] = {}  # by column, bool [N, 1]

    def add(self, operator: str, *inputs: str, domain: str = "", output: str | None = None, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = output or f"value {len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [name], domain=domain, **attributes))
        return name

    def constant(self, values: Any, kind: type = np.float64) -> str:
        """Add a constant and return its name."""
        name = f"constant {len(self.constants)}"
        array: Array = np.array(values, dtype=object if kind is str else kind)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def number(self, value: float) -> str:
        return self.constant([[value]])

    def _input(self, name: str, is_text: bool, width: int) -> str:
        kind = self.onnx.TensorProto.STRING if is_text else self.onnx.TensorProto.DOUBLE
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, ["N", width]))
        return name

    def scores(self, model: PortableModel) -> str:
        """Add the scores [N, C]."""
        if model.is_matrix:
            weights = np.zeros((model.width, len(model.intercept)))
            weights[[int(term.name[1:]) for term in model.terms]] = model.coefficients.T
            product = self.add("MatMul", self._input("x", False, model.width), self.constant(weights))
        else:
            for column in model.columns:
                self._add_column(column)
            terms = [self._product(term.factors) for term in model.terms]
            if not terms:  # the score is constant
                rows = self._first_of(model.columns[0])
                terms = [self.add("Mul", self.number(0.0), self.add("Cast", rows, to=self.onnx.TensorProto.DOUBLE))]
            features = self.add("Concat", *terms, axis=1) if len(terms) > 1 else terms[0]
            weights = model.coefficients.T if model.terms else np.zeros((1, len(model.intercept)))
            product = self.add("MatMul", features, self.constant(weights))
        total = self.add("Add", product, self.constant(model.intercept[None]))
        return total if model.offset is None else self.add("Add", total, self._expression(model.offset))

    def _first_of(self, column: InputColumn) -> str:
        """Return a bool [N, 1] of a column."""
        return self.missing[column.column]

    def _add_column(self, column: InputColumn) -> None:
        name = self._input(column.column, column.type == "text", 1)
        if column.type == "number":
            self._add_number(column, name)
        elif column.type == "code":
            self._add_codes(column, name)
        else:
            self._add_texts(column, name)

    def _is_missing_number(self, column: InputColumn, name: str) -> str:
        missing = self.add("IsNaN", name)
        for number in column.missing:
            missing = self.add("Or", missing, self.add("Equal", name, self.number(number)))
        return missing

    def _add_number(self, column: InputColumn, name: str) -> None:
        self.missing[column.column] = missing = self._is_missing_number(column, name)
        if column.fill is None:
            self.numbers[column.column] = name
        else:
            assert isinstance(column.fill, float)
            self.numbers[column.column] = self.add("Where", missing, self.number(column.fill), name)

    def _add_codes(self, column: InputColumn, name: str) -> None:
        self.missing[column.column] = missing = self._is_missing_number(column, name)
        names, known, unknown, fill = _encoding(column)
        if column.cells:
            equal = self.add("Equal", name, self.constant([column.cells]))
            equal = self.add("Cast", equal, to=self.onnx.TensorProto.DOUBLE)
            rows = self.add("MatMul", equal, self.constant(known))
            count = self.add("ReduceSum", equal, self.constant([1], np.int64), keepdims=1)
            rows = self.add("Where", self.add("Greater", count, self.number(0.5)), rows, self.constant(unknown[None]))
        else:
            rows = self.constant(unknown[None])
        self.indicators[column.column] = self.add("Where", missing, self.constant(fill[None]), rows), names

    def _add_texts(self, column: InputColumn, name: str) -> None:
        names, known, unknown, fill = _encoding(column)
        places = [*range(len(column.cells)), *([len(column.cells)] * len(column.missing))]
        place = self.add(
            "LabelEncoder", name, domain="ai.onnx.ml", keys_strings=[*column.cells, *column.missing],
            values_int64s=places, default_int64=len(column.cells) + 1,
        )  # fmt: skip
        flat = self.add("Squeeze", place, self.constant([1], np.int64))
        rows = self.add("Gather", self.constant(np.vstack([known, fill, unknown])), flat, axis=0)
        self.indicators[column.column] = rows, names
        self.missing[column.column] = self.add("Equal", place, self.constant([[len(column.cells)]], np.int64))

    def _product(self, factors: tuple[Expression, ...]) -> str:
        product = self._expression(factors[0])
        for factor in factors[1:]:
            product = self.add("Mul", product, self._expression(factor))
        return product

    def _expression(self, expression: Expression) -> str:
        """Add an expression [N, 1], or [1, 1] for a constant."""
        match expression:
            case Number(value):
                return self.number(value)
            case Column(column):
                return self.numbers[column]
            case Indicator(column, category):
                rows, names = self.indicators[column]
                return self.add("Gather", rows, self.constant([names.index(category)], np.int64), axis=1)
            case IsMissing(column):
                return self.add("Cast", self.missing[column], to=self.onnx.TensorProto.DOUBLE)
            case Call(function, arguments):
                own = [self._expression(one) for one in arguments]
                if function in LOG_BASES:
                    return self.add("Div", self.add("Log", *own), self.number(float(np.log(LOG_BASES[function]))))
                return self.add(OPERATORS[function], *own)
            case Piecewise(argument, breaks, coefficients):
                return self._piecewise(self._expression(argument), breaks, np.array(coefficients))

    def _piecewise(self, x: str, breaks: tuple[float, ...], coefficients: Array) -> str:
        above = self.add("GreaterOrEqual", x, self.constant([breaks]))
        above = self.add("Cast", above, to=self.onnx.TensorProto.INT64)
        piece = self.add("ReduceSum", above, self.constant([1], np.int64), keepdims=1)
        distance = self.add("Sub", x, self.add("Gather", self.constant([breaks[0], *breaks]), piece))
        total = self.add("Gather", self.constant(coefficients[:, -1]), piece)
        for power in range(coefficients.shape[1] - 2, -1, -1):
            own = self.add("Gather", self.constant(coefficients[:, power]), piece)
            total = self.add("Add", self.add("Mul", total, distance), own)
        return total

    def outputs(self, model: PortableModel, scores: str) -> list[Any]:
        """Add the predictions, given the scores [N, C], and return the outputs."""
        helper, types = self.onnx.helper, self.onnx.TensorProto
        axis = self.constant([1], np.int64)
        if model.link not in ("logit", "softmax"):
            values = self.add("Exp", scores) if model.link == "log" else scores
            self.add("Squeeze", values, axis, output="prediction")
            return [helper.make_tensor_value_info("prediction", types.DOUBLE, ["N"])]
        classes = model.output_classes
        if model.link == "logit":
            positive = self.add("Sigmoid", scores)
            self.add("Concat", self.add("Sub", self.number(1.0), positive), positive, axis=1, output="probabilities")
            best = self.add("Greater", self.add("Squeeze", positive, axis), self.constant(0.5))
            best = self.add("Cast", best, to=types.INT64)
        else:
            self.add("Softmax", scores, axis=1, output="probabilities")
            best = self.add("ArgMax", "probabilities", axis=1, keepdims=0)
        self.add("Gather", self.constant(classes, str), best, output="prediction")
        return [
            helper.make_tensor_value_info("prediction", types.STRING, ["N"]),
            helper.make_tensor_value_info("probabilities", types.DOUBLE, ["N", len(classes)]),
        ]


def _encoding(column: InputColumn) -> tuple[list[str], Array, Array, Array]:
    """Return the categories of a column, and the indicators of known cells [K, J], of unknown and of missing ones."""
    assert isinstance(column.fill, dict)
    names, fill = list(column.fill), np.array(list(column.fill.values()))
    known = np.array([[float(name == own) for name in names] for own in column.categories])
    unknown = fill if column.unknown is None else np.array([float(name == column.unknown) for name in names])
    return names, known.reshape(len(column.cells), len(names)), unknown, fill
