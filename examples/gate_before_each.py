"""A gate before an `each` stage: items are begun while others are still being found, so a stage between gives them.

It prints:

    first:  completed, 3 orders packed
    second: completed, ended early: nothing to pack
"""

from tempfile import TemporaryDirectory

from gristmill import Context, EndRun, Mill, Pipeline

orders = Pipeline("orders")


@orders.stage
def collect(ctx: Context, names: list[str]) -> list[str]:
    return sorted(set(names))  # all of them are known here, and none is begun


@orders.gate(after=collect)
def enough(ctx: Context) -> None:
    [(_, names)] = ctx.results("collect")
    if not names:
        raise EndRun("nothing to pack")


@orders.stage(after=collect)  # and so after its gate
def hand_out(ctx: Context):
    [(_, names)] = ctx.results("collect")
    yield from names


@orders.stage(after=hand_out, each=True)
def pack(ctx: Context) -> str:
    return f"{ctx.key} packed"


def run_once(mill: Mill, names: list[str]) -> str:
    run = mill.start(orders, "today", args={"names": names})
    mill.work(until="drained", slots=1)
    run = mill.run(run.id)
    if run.reason:
        return f"{run.state}, ended early: {run.reason}"
    return f"{run.state}, {run.stage('pack').completed} orders packed"


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Mill.open(f"sqlite:///{folder}/orders.db", orders) as mill:
        print("first: ", run_once(mill, ["books", "lamps", "books", "chairs"]))
        print("second:", run_once(mill, []))
