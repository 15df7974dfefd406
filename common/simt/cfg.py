"""From a parsed kernel to basic blocks: calls inlined, guards turned into branches, order and liveness found.

Blocks are numbered so that the scheduler can simply run the lowest number first: a loop comes before what
follows it, and a join after all its branches (topological order of the strongly connected components, loops
unrolled recursively). Lowest-number-first then reconverges at post-dominators whatever order the compiler
laid the code out in.
"""

from dataclasses import dataclass, field
from typing import Any

from common.simt.errors import SimulatorUnsupported
from common.simt.ptx import (
    TYPE_BYTES,
    Function,
    Instr,
    Label,
    Mem,
    Module,
    Not,
    Operand,
    Pair,
    Reg,
    Sym,
    Variable,
    Vec,
)

# Instructions that a whole warp executes together: they start a block, so that the scheduler can wait for lanes.
WARP_OPS = {"shfl", "vote", "match", "redux", "elect", "mma", "wmma", "ldmatrix", "stmatrix", "movmatrix"}
BUILTIN_CALLS = {"vprintf": "printf", "__assertfail": "assertfail"}


@dataclass
class Block:
    """Straight-line instructions, and how control leaves them.

    kind: 'jump' (targets[0]), 'branch' (targets[0] where the predicate holds, else targets[1]),
    'switch' (targets[index]), 'exit', or 'barrier' (targets[0] once the block's threads have arrived).
    """

    instrs: list[Instr]
    kind: str = "exit"
    control: Instr | None = None  # the bra, brx or bar itself
    targets: list[int] = field(default_factory=list)
    warp_op: Instr | None = None  # the warp instruction it starts with
    live_in: set[str] = field(default_factory=set)  # registers that something here or later may read
    live_out: set[str] = field(default_factory=set)  # registers that something later may read
    spins: bool = False  # part of a loop that may wait for another thread

    def all_instrs(self) -> list[Instr]:
        """The instructions with the one that leaves the block."""
        return self.instrs if self.control is None else [*self.instrs, self.control]

    def late_result(self) -> set[str]:
        """The result of a bar.red that ends the block: it exists only once the barrier opens, in the next block."""
        if self.kind == "barrier" and self.control is not None and "red" in self.control.mods:
            return set(registers(self.control.args[0]))
        return set()


@dataclass
class Kernel:
    """A kernel ready for translation."""

    name: str
    function: Function
    blocks: list[Block]  # blocks[0] is the entry
    shared: dict[str, Variable]
    local: dict[str, Variable]


def build(module: Module, name: str) -> Kernel:
    """Inline, cut into blocks, order them and compute liveness."""
    function = module.functions[name]
    flat = _Inliner(module, function)
    blocks = _order(_cut(flat.body, flat.targets))
    _liveness(blocks)
    _mark_spins(blocks)
    return Kernel(name, function, blocks, flat.shared, flat.local)


class _Inliner:
    """Expands every call in place; each copy gets registers, labels and local variables of its own."""

    def __init__(self, module: Module, entry: Function):
        self.module = module
        self.entry = entry
        self.body: list = []
        self.targets: dict[str, list[str]] = {}
        self.shared: dict[str, Variable] = {}
        self.local: dict[str, Variable] = {}
        self.copies = 0
        self.passing: list[Instr] = []  # the loads and stores of call parameters
        self.expand(entry, "", {}, [entry.name])
        self.moves()

    def expand(self, f: Function, suffix: str, names: dict[str, str], stack: list[str]) -> None:
        """Append f's body; `names` maps its formal parameters to the caller's."""
        for v in f.variables.values():
            if v.space == "shared":
                self.shared[v.name] = v
            elif v.space == "local":
                names = {**names, v.name: v.name + suffix}
                self.local[v.name + suffix] = v
        if suffix:
            for reg, kind in f.regs.items():
                name = f"{reg[:-2]}{suffix}<>" if reg.endswith("<>") else _suffixed(reg, suffix)
                self.entry.regs[name] = kind
        self.targets.update({k + suffix: [t + suffix for t in v] for k, v in f.targets.items()})
        end = Label(f"$ret{suffix}")
        for item in f.body:
            if isinstance(item, Label):
                self.body.append(Label(item.name + suffix))
                continue
            args = [self.rename(a, suffix, names) for a in item.args]
            guard = item.guard and self.rename(item.guard, suffix, names)
            instr = Instr(item.op, item.mods, args, guard, item.loc, item.text)
            if instr.guard is not None and instr.op != "bra":
                self.skip_unless(instr)
            if instr.op == "call":
                self.call(instr, stack)
            elif suffix and instr.op == "ret":
                self.body.append(Instr("bra", ("uni",), [Sym(end.name)], None, instr.loc, instr.text))
            elif instr.op in ("ld", "st") and "param" in instr.mods and self.is_call_param(instr):
                self.body.append(instr)
                self.passing.append(instr)
            else:
                self.body.append(instr)
            if item.guard is not None and item.op != "bra":
                self.body.append(Label(f"$skip{self.copies}"))
        if suffix:
            self.body.append(end)

    def skip_unless(self, instr: Instr) -> None:
        """`@p op` is `@!p bra skip; op; skip:`: one way to diverge, not two."""
        self.copies += 1
        guard = instr.guard.reg if isinstance(instr.guard, Not) else Not(instr.guard)  # type: ignore[arg-type]
        self.body.append(Instr("bra", (), [Sym(f"$skip{self.copies}")], guard, instr.loc, instr.text))
        instr.guard = None

    def rename(self, arg: Any, suffix: str, names: dict[str, str]) -> Any:
        """An operand of this copy of the function."""
        if isinstance(arg, Reg):
            special = arg.name == "_" or (arg.name.startswith("%") and arg.name.split(".")[0] in SPECIAL)
            return arg if special or not suffix else Reg(_suffixed(arg.name, suffix))
        if isinstance(arg, Sym):
            if arg.name in names:
                return Sym(names[arg.name], arg.offset)
            common = arg.name in self.module.variables or arg.name in self.module.functions or arg.name in self.shared
            return arg if common or not suffix else Sym(arg.name + suffix, arg.offset)
        if isinstance(arg, Mem):
            return Mem(self.rename(arg.base, suffix, names), arg.offset)
        if isinstance(arg, Vec):
            return Vec(tuple(self.rename(a, suffix, names) for a in arg.items))
        if isinstance(arg, Pair):
            return Pair(self.rename(arg.first, suffix, names), self.rename(arg.second, suffix, names))
        if isinstance(arg, Not):
            return Not(self.rename(arg.reg, suffix, names))
        return arg

    def is_call_param(self, instr: Instr) -> bool:
        """Whether an ld.param or st.param passes a value between caller and callee (not from the launch)."""
        mem = instr.args[instr.op == "ld"]
        return isinstance(mem.base, Sym) and all(p.name != mem.base.name for p in self.entry.params)

    def moves(self) -> None:
        """Turn the accesses to call parameters into moves to and from registers named after parameter and offset.

        Where one access writes what several read, or the other way round, each part has a register of its own.
        """
        cuts: dict[str, set[int]] = {}  # parameter -> offsets at which an element of an access starts or ends
        accesses = []
        for instr in self.passing:
            mem, value = instr.args if instr.op == "st" else instr.args[::-1]
            size = TYPE_BYTES[instr.mods[-1]]
            items = value.items if isinstance(value, Vec) else (value,)
            accesses.append((instr, mem, items, size))
            cuts.setdefault(mem.base.name, set()).update(mem.offset + k * size for k in range(len(items) + 1))

        def slot(name: str, at: int, size: int) -> Reg | Vec:
            if any(at < cut < at + size for cut in cuts[name]):
                return Vec((slot(name, at, size // 2), slot(name, at + size // 2, size // 2)))
            self.entry.regs[f"{name}+{at}"] = f"b{8 * max(size, 2)}"
            return Reg(f"{name}+{at}")

        for instr, mem, items, size in accesses:
            slots = [slot(mem.base.name, mem.offset + k * size, size) for k in range(len(items))]
            pairs = zip(slots, items, strict=True) if instr.op == "st" else zip(items, slots, strict=True)
            instr.op, instr.mods, instr.args = "movs", instr.mods[-1:], [arg for pair in pairs for arg in pair]

    def call(self, instr: Instr, stack: list[str]) -> None:
        """Append the callee's body; `stack` names the functions being expanded."""
        args = list(instr.args)
        returns = args.pop(0).items if isinstance(args[0], Vec) else ()
        target = args.pop(0)
        if not isinstance(target, Sym):
            raise SimulatorUnsupported(f"calls through a pointer ({instr.text})")
        actual = args.pop(0).items if args else ()
        name = target.name
        if name in BUILTIN_CALLS:
            slots = [Reg(f"{a.name}+0") for a in actual]
            result = [Reg(f"{r.name}+0") for r in returns]
            for r in result:
                self.entry.regs.setdefault(r.name, "b32")
            self.body.append(Instr(BUILTIN_CALLS[name], (), result + slots, None, instr.loc, instr.text))
            return
        callee = self.module.functions.get(name)
        if callee is None or not callee.body:
            raise SimulatorUnsupported(f"the device function {name}()")
        if name in stack:
            raise SimulatorUnsupported(f"recursion ({' -> '.join([*stack, name])})")
        self.copies += 1
        suffix = f"@{self.copies}:"
        names = {p.name: a.name for p, a in zip(callee.params, actual, strict=True)}
        names |= {p.name: r.name for p, r in zip(callee.returns, returns, strict=True)}
        self.expand(callee, suffix, names, [*stack, name])


def _suffixed(name: str, suffix: str) -> str:
    """%r12 becomes %r@3:12: the number stays last, so that the family's type is found by the same rule."""
    digits = len(name) - len(name.rstrip("0123456789"))
    return f"{name[:-digits]}{suffix}{name[-digits:]}" if digits and "." not in name else name + suffix


# Special registers; Group.special has their values. Of the others PTX defines, none is supported.
SPECIAL = {
    "%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid",
    "%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt", "%clock", "%clock_hi", "%clock64",
    "%globaltimer", "%globaltimer_lo", "%globaltimer_hi", "%envreg1", "%envreg2", "%dynamic_smem_size",
    "%total_smem_size", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid", "%cluster_ctarank",
    "%cluster_nctarank", "%is_explicit_cluster",
}  # fmt: skip


def _cut(body: list, tables: dict[str, list[str]]) -> list[Block]:
    """Cut the flat body at labels, branches, barriers and warp instructions."""
    blocks = [Block([])]
    labels: dict[str, int] = {}
    pending: list[tuple[int, list[str], bool]] = []  # (block, label targets, falls through)

    def start() -> None:
        blocks.append(Block([]))

    for item in body:
        last = blocks[-1]
        if isinstance(item, Label):
            if last.instrs or last.control or last.warp_op:
                _fall(blocks, pending)
                start()
            labels[item.name] = len(blocks) - 1
        elif item.op == "bra":
            last.control = item
            last.kind = "branch" if item.guard is not None else "jump"
            pending.append((len(blocks) - 1, [item.args[0].name], item.guard is not None))
            start()
        elif item.op == "brx":
            last.control, last.kind = item, "switch"
            pending.append((len(blocks) - 1, tables[item.args[1].name], False))
            start()
        elif item.op in ("ret", "exit"):
            last.control, last.kind = item, "exit"
            start()
        elif item.op in ("bar", "barrier") and "warp" not in item.mods and "cluster" not in item.mods:
            last.control, last.kind = item, "barrier"
            pending.append((len(blocks) - 1, [], True))
            start()
        elif item.op in WARP_OPS or (item.op == "bar" and "warp" in item.mods):
            if last.instrs or last.warp_op:
                _fall(blocks, pending)
                start()
            blocks[-1].warp_op = item
            blocks[-1].instrs.append(item)
        else:
            last.instrs.append(item)
    for index, names, falls in pending:
        blocks[index].targets = [labels[n] for n in names] + ([index + 1] if falls else [])
    return blocks


def _fall(blocks: list[Block], pending: list) -> None:
    """End the last block without a branch."""
    blocks[-1].kind = "jump"
    pending.append((len(blocks) - 1, [], True))


def _components(nodes: set[int], succ: dict[int, list[int]]) -> list[list[int]]:
    """Strongly connected components in topological order (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    found: list[list[int]] = []
    for root in sorted(nodes):
        if root in index:
            continue
        work = [(root, iter(succ[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, children = work[-1]
            for child in children:
                if child not in nodes:
                    continue
                if child not in index:
                    index[child] = low[child] = len(index)
                    stack.append(child)
                    on_stack.add(child)
                    work.append((child, iter(succ[child])))
                    break
                if child in on_stack:
                    low[node] = min(low[node], index[child])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while True:
                        top = stack.pop()
                        on_stack.discard(top)
                        component.append(top)
                        if top == node:
                            break
                    found.append(component)
    return found[::-1]


def _order(blocks: list[Block]) -> list[Block]:
    """Renumber: reachable blocks only, joins after their branches, loops before what follows them."""
    reachable, work = {0}, [0]
    while work:
        for target in blocks[work.pop()].targets:
            if target not in reachable:
                reachable.add(target)
                work.append(target)

    def visit(nodes: set[int], succ: dict[int, list[int]], entries: set[int]) -> list[int]:
        """The order of some blocks; `entries` are those that control enters from outside."""
        ordered: list[int] = []
        for component in _components(nodes, succ):
            if len(component) == 1:
                ordered.append(component[0])
                continue
            inside = set(component)
            heads = sorted(inside & entries) or sorted(n for n in inside if any(n in succ[m] for m in nodes - inside))
            head = heads[0] if heads else min(inside)
            cut = {n: [t for t in succ[n] if t != head] for n in inside}
            outer = {t for n in nodes - inside for t in succ[n]} | set(succ[head])
            ordered += visit(inside, cut, outer & inside)
        return ordered

    order = visit(reachable, {n: blocks[n].targets for n in reachable}, {0})
    number = {old: new for new, old in enumerate(order)}
    for old in order:
        blocks[old].targets = [number[t] for t in blocks[old].targets]
    return [blocks[old] for old in order]


# Opcodes whose first operand is read, not written.
NO_RESULT = {
    "st", "red", "bar", "barrier", "brx", "prefetch", "prefetchu", "cp", "nanosleep", "stmatrix", "assertfail",
    "discard", "applypriority",
}  # fmt: skip


def registers(arg: Operand) -> list[str]:
    """Names of the ordinary registers in an operand."""
    if isinstance(arg, Reg):
        special = arg.name == "_" or arg.name.split(".")[0] in SPECIAL
        return [] if special else [arg.name]
    if isinstance(arg, Vec):
        return [r for a in arg.items for r in registers(a)]
    if isinstance(arg, Mem):
        return registers(arg.base)
    if isinstance(arg, Pair):
        return registers(arg.first) + registers(arg.second)
    if isinstance(arg, Not):
        return registers(arg.reg)
    return []


def defs_and_uses(instr: Instr) -> tuple[list[str], list[str]]:
    """The registers an instruction writes, and those it reads."""
    args = instr.args
    if instr.op == "movs":
        defs = [r for a in args[0::2] for r in registers(a)]
        uses = [r for a in args[1::2] for r in registers(a)]
    else:
        reads_all = instr.op in NO_RESULT or (instr.op == "wmma" and "store" in instr.mods)
        if instr.op in ("bar", "barrier") and "red" in instr.mods:
            reads_all = False
        results = 0 if reads_all else 1
        defs = [r for a in args[:results] for r in registers(a)]
        uses = [r for a in args[results:] for r in registers(a)]
    if "cc" in instr.mods:
        defs = [*defs, "%CC"]
    if instr.op in ("addc", "subc", "madc"):
        uses = [*uses, "%CC"]
    if instr.guard is not None:
        uses = uses + registers(instr.guard)
    return defs, uses


def _liveness(blocks: list[Block]) -> None:
    """Fill in live_in and live_out."""
    reads: list[set[str]] = []
    writes: list[set[str]] = []
    for block in blocks:
        used: set[str] = set()
        defined: set[str] = set()
        for instr in block.all_instrs():
            defs, uses = defs_and_uses(instr)
            used |= set(uses) - defined
            defined |= set(defs)
        reads.append(used)
        writes.append(defined - block.late_result())
    changed = True
    while changed:
        changed = False
        for i in range(len(blocks) - 1, -1, -1):
            block = blocks[i]
            out: set[str] = set()
            for t in block.targets:
                out |= blocks[t].live_in
            out -= block.late_result()
            live = reads[i] | (out - writes[i])
            if out != block.live_out or live != block.live_in:
                block.live_out, block.live_in, changed = out, live, True


def _waits(instr: Instr, used: set[str]) -> bool:
    """True for what a thread may read again and again until another thread changes it."""
    if instr.op == "atom":
        return bool(set(registers(instr.args[0])) & used)
    if instr.op == "ld":
        return bool({"volatile", "relaxed", "acquire", "cg", "cv"} & set(instr.mods))
    return instr.op in ("nanosleep", "membar", "fence")


def _mark_spins(blocks: list[Block]) -> None:
    """Mark the innermost loops around an instruction that may wait, less the inner loops that cannot."""
    used = {r for b in blocks for i in b.all_instrs() for r in defs_and_uses(i)[1]}
    waiting = {i for i, b in enumerate(blocks) if any(_waits(instr, used) for instr in b.instrs)}

    def visit(nodes: set[int], succ: dict[int, list[int]]) -> None:
        for component in _components(nodes, succ):
            inside = set(component)
            if len(component) == 1 and component[0] not in succ[component[0]]:
                continue
            if not inside & waiting:
                for n in inside:
                    blocks[n].spins = False
                continue
            for n in inside:
                blocks[n].spins = True
            if len(component) > 1:
                head = min(inside)
                visit(inside, {n: [t for t in succ[n] if t != head] for n in inside})

    if waiting:
        visit(set(range(len(blocks))), {i: b.targets for i, b in enumerate(blocks)})
