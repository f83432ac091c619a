"""The two innermost loops, in instructions for vector registers: dot products, and sums of multiples of rows.

Numba leaves it to LLVM in which order a sum in a loop is added up, and that depends on what else the loop does. Here
the order is part of the text, however many sums run side by side: a sum gives the same bits alone and among others.
Their meaning in Python, by the same names, is in products.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

BITS = 512  # of a register; a processor with shorter ones takes several
MAY_FUSE = ("contract",)  # a product and a sum may be one instruction


def many_registers() -> bool:
    """Whether machine code is made for 32 vector registers (AVX-512), and not 16."""
    return "+avx512f" in cpu_target.target_context.codegen().magic_tuple()[2]


class Loops:
    """Loops over columns for arrays of one precision: by registers full of them, then one by one."""

    def __init__(self, builder: Any, number: Any) -> None:
        self.builder, self.bytes, self.lanes = builder, number.bitwidth // 8, BITS // number.bitwidth
        self.one = ir.DoubleType() if number == types.float64 else ir.FloatType()
        self.several = ir.VectorType(self.one, self.lanes)

    def at(self, start: Any, k: Any, kind: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(start, [k]), kind.as_pointer())

    def load(self, starts: list[Any], k: Any, kind: Any) -> list[Any]:
        """Column k of the vectors, or as many from there on as `kind` holds."""
        return [self.builder.load(self.at(start, k, kind), align=self.bytes) for start in starts]

    def ask_for(self, starts: list[Any], k: Any) -> None:
        """Column k of the vectors, and what shares its cache line: for the second-level cache, to be read later."""
        number, place = ir.IntType(32), ir.IntType(8).as_pointer()
        prefetch = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(ir.VoidType(), [place, number, number, number]), "llvm.prefetch.p0i8"
        )
        reading, second_level, data = (ir.Constant(number, value) for value in (0, 2, 1))
        for start in starts:
            self.builder.call(prefetch, [self.at(start, k, ir.IntType(8)), reading, second_level, data])

    def add_product(self, total: Any, a: Any, b: Any) -> Any:
        return self.builder.fadd(total, self.builder.fmul(a, b, flags=MAY_FUSE), flags=MAY_FUSE)

    @contextmanager
    def columns(self, first: Any, last: Any, step: int) -> Iterator[Any]:
        with cgutils.for_range_slice(self.builder, first, last, ir.Constant(first.type, step)) as (k, _):
            yield k

    def whole(self, count: Any, registers: int = 1) -> Any:
        """How many of the columns fill registers, or so many of them at a time."""
        return self.builder.sub(count, self.builder.srem(count, ir.Constant(count.type, registers * self.lanes)))

    def folded(self, register: Any) -> Any:
        """The sum of the lanes: the upper half is added to the lower until one is left."""
        lanes, index = self.lanes, ir.IntType(32)
        while lanes > 1:
            lanes //= 2
            low, high = (
                ir.Constant(ir.VectorType(index, lanes), list(range(first, first + lanes))) for first in (0, lanes)
            )
            register = self.builder.fadd(*(self.builder.shuffle_vector(register, register, h) for h in (low, high)))
        return self.builder.extract_element(register, ir.Constant(index, 0))

    def filled(self, number: Any) -> Any:
        """A register with the number in every lane."""
        index = ir.IntType(32)
        first = self.builder.insert_element(ir.Constant(self.several, ir.Undefined), number, ir.Constant(index, 0))
        return self.builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(index, self.lanes), None))


def _call(builder: Any, name: str, result: Any, arguments: list[Any], write: Callable[[Any, Any], Any]) -> Any:
    """Call a function that `write` writes once: inlined, it would be optimized again at every level of calls."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [each.type for each in arguments]), name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        inside = ir.IRBuilder(function.append_basic_block())
        inside.ret(write(inside, function.args))
    return builder.call(function, arguments)


def _starts(context: Any, builder: Any, kind: Any, array: Any, places_kind: Any, places: Any) -> list[Any]:
    """Where the vectors begin, at these places of an array."""
    data = context.make_array(kind)(context, builder, array).data
    return [builder.gep(data, [place]) for place in cgutils.unpack_tuple(builder, places, places_kind.count)]


def _suited(*arrays: Any) -> bool:
    return len({array.dtype for array in arrays}) == 1 and {array.layout for array in arrays} == {"C"}


@intrinsic
def dots(typingctx: Any, w: Any, vectors: Any, x: Any, rows: Any, count: Any, soon: Any) -> Any:
    """(w_v . x_r, ...) for all v and r, of `count` columns each.

    Lane l of a sum adds up the columns l, l + lanes, l + 2 lanes, ... in this order, then the lanes are added, then
    come the columns that fill no register. Beside every register memory is asked for as much at the addresses `soon`:
    it brings the next rows while these are multiplied.
    """
    if not _suited(w, x):
        return None

    def write(builder: Any, arguments: Any) -> Any:
        loops, (*starts, count) = Loops(builder, w.dtype), arguments
        a, b = starts[: vectors.count], starts[vectors.count : vectors.count + rows.count]
        later = [builder.inttoptr(each, loops.one.as_pointer()) for each in starts[vectors.count + rows.count :]]

        def add_columns(first: Any, last: Any, step: int, kind: Any, sums: list[Any]) -> None:
            with loops.columns(first, last, step) as k:
                if step > 1:
                    loops.ask_for(later, k)
                of_w, of_x = loops.load(a, k, kind), loops.load(b, k, kind)
                for place, total in enumerate(sums):
                    more = loops.add_product(builder.load(total), of_w[place // len(b)], of_x[place % len(b)])
                    builder.store(more, total)

        zero, whole = ir.Constant(count.type, 0), loops.whole(count)
        sums = [cgutils.alloca_once_value(builder, ir.Constant(loops.several, None)) for _ in range(len(a) * len(b))]
        add_columns(zero, whole, loops.lanes, loops.several, sums)
        totals = [cgutils.alloca_once_value(builder, loops.folded(builder.load(total))) for total in sums]
        add_columns(whole, count, 1, loops.one, totals)
        return cgutils.pack_array(builder, [builder.load(total) for total in totals])

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        starts = [*_starts(context, builder, w, given[0], vectors, given[1])]
        starts += _starts(context, builder, x, given[2], rows, given[3])
        starts += cgutils.unpack_tuple(builder, given[5], soon.count)
        name = f"fco_dots_{w.dtype}_{vectors.count}_{rows.count}_{soon.count}"
        return _call(builder, name, context.get_value_type(signature.return_type), [*starts, given[4]], write)

    return types.UniTuple(w.dtype, vectors.count * rows.count)(w, vectors, x, rows, count, soon), generate


@intrinsic
def add_multiples(
    typingctx: Any, w: Any, vectors: Any, x: Any, rows: Any, low: Any, count: Any, slopes: Any, first: Any
) -> Any:
    """w_v += slopes[first + v, i] x[rows[i], low : low + count] for all v and i, one row after another.

    Some columns of all vectors stay in registers until the last row: a weight is loaded and stored once.
    """
    if not _suited(w, x, slopes) or rows.layout != "C":
        return None

    def write(builder: Any, arguments: Any) -> Any:
        loops, zero = Loops(builder, w.dtype), ir.Constant(arguments[-1].type, 0)
        *starts, data, width, places, many, factors, stride, count = arguments
        own = [builder.gep(factors, [builder.mul(stride, ir.Constant(stride.type, v))]) for v in range(len(starts))]

        def add_columns(first: Any, last: Any, kind: Any, wide: int) -> None:
            """`wide` times as many columns at a time as `kind` holds."""
            lanes = loops.lanes if kind is loops.several else 1
            with loops.columns(first, last, lanes * wide) as k:
                at = [builder.add(k, ir.Constant(k.type, lanes * part)) for part in range(wide)]
                totals = [
                    [cgutils.alloca_once_value(builder, loops.load([start], c, kind)[0]) for c in at]
                    for start in starts
                ]
                with loops.columns(zero, many, 1) as i:
                    row = builder.gep(data, [builder.mul(builder.load(builder.gep(places, [i])), width)])
                    parts = [loops.load([row], c, kind)[0] for c in at]
                    for slopes_of, sums in zip(own, totals, strict=True):
                        factor = builder.load(builder.gep(slopes_of, [i]))
                        factor = loops.filled(factor) if kind is loops.several else factor
                        for total, part in zip(sums, parts, strict=True):
                            builder.store(loops.add_product(builder.load(total), part, factor), total)
                for start, sums in zip(starts, totals, strict=True):
                    for c, total in zip(at, sums, strict=True):
                        builder.store(builder.load(total), loops.at(start, c, kind), align=loops.bytes)

        wide = 4 if len(starts) == 1 or many_registers() else 2
        most, whole = loops.whole(count, wide), loops.whole(count)
        add_columns(zero, most, loops.several, wide)
        add_columns(most, whole, loops.several, 1)
        add_columns(whole, count, loops.one, 1)
        return zero

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        starts = _starts(context, builder, w, given[0], vectors, given[1])
        data, places, factors = (
            context.make_array(kind)(context, builder, array)
            for kind, array in ((x, given[2]), (rows, given[3]), (slopes, given[6]))
        )
        many = cgutils.unpack_tuple(builder, places.shape)[0]
        width, stride = (cgutils.unpack_tuple(builder, array.shape)[1] for array in (data, factors))
        own = builder.gep(factors.data, [builder.mul(given[7], stride)])
        name = f"fco_add_multiples_{w.dtype}_{vectors.count}"
        _call(
            builder,
            name,
            given[5].type,
            [*starts, builder.gep(data.data, [given[4]]), width, places.data, many, own, stride, given[5]],
            write,
        )
        return context.get_dummy_value()

    return types.none(w, vectors, x, rows, low, count, slopes, first), generate
