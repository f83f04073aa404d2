"""Thousands of subjects, one operator: which of them need a look, and what is wrong, cause by cause.

It prints:

    stale: ashford, oakfield
    west:  millbrook, oakfield
    2 jobs of 2 subjects fail by one cause: ConnectionError
    ashford failed 1 time, and never had a good run
"""

from tempfile import TemporaryDirectory

from gristmill import Context, Mill, Pipeline

towns = Pipeline("towns")


@towns.stage
def visit(ctx: Context) -> None:
    if ctx.subject != "millbrook":
        raise ConnectionError(f"no answer from https://{ctx.subject}.example/agenda")


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Mill.open(f"sqlite:///{folder}/towns.db", towns) as mill:
        for name, county in [("ashford", "east"), ("millbrook", "west"), ("oakfield", "west")]:
            mill.set_subject(towns, name, interval=86_400, labels={"county": county})
            mill.start(towns, name)
        mill.work(until="drained", slots=1)
        print("stale:", ", ".join(town.name for town in mill.subjects(stale_for=3600)))
        print("west: ", ", ".join(town.name for town in mill.subjects(label="county=west")))
        for error in mill.errors():
            print(f"{error.failed} jobs of {error.subjects} subjects fail by one cause: {error.error_class}")
        ashford, runs = mill.subject(towns, "ashford"), mill.runs(subject="ashford", state="failed")
        print(
            f"ashford {ashford.state} {len(runs)} time, and",
            "never" if ashford.last_good_run is None else "once",
            "had a good run",
        )
