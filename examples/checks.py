"""A check of the application's own: reconcile asks it what is wrong, and mends that by a verb of the mill.

It prints:

    look into: stock: less than nothing is there
    enqueue: stock: runs out
    ordered pears
"""

from gristmill import Context, Finding, Mill, check, task

STOCK = {"apples": 12, "pears": 1, "plums": -3}


@task
def order(ctx: Context, fruit: str) -> str:
    return f"ordered {fruit}"


@check
def stock(ctx: Context):
    """Runs in a process of its own. `ctx.pipeline` and `ctx.subject` are what reconcile was asked about, if anything."""
    for fruit, number in sorted(STOCK.items(), key=lambda pair: pair[1]):
        if number < 0:
            yield Finding("less than nothing is there", subject=fruit)  # no verb: a person has to look
        elif number < 5:
            yield Finding("runs out", subject=fruit, verb="enqueue", task="order", args={"fruit": fruit})


if __name__ == "__main__":
    with Mill.open("sqlite:///checks.db", order, stock) as mill:
        for repair in mill.reconcile():
            print(f"{repair.what}: {repair.detail}")
        mill.reconcile()  # the job is still there: it gets no twin
        mill.work(until="drained", slots=1)
        for job in mill.jobs(task="order"):
            print(job.result)
