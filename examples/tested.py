"""A pipeline and its tests, without a worker: one function at a time, then a whole run with retries of an hour each.

It prints:

    one function: skipped, nothing to translate
    after 1 attempt of each: in_progress
    after 3 hours: completed_with_errors, ['bonjour']
    failed: rude, too rude
"""

from tempfile import TemporaryDirectory

from gristmill import Context, Mill, Permanent, Pipeline, Retries, Skip
from gristmill.testing import FrozenClock, Item, call, drain

WORDS = {"hello": "bonjour", "bye": "au revoir"}
translate = Pipeline("translate")


@translate.stage
def split(ctx: Context, text: str):
    for word in text.split():
        yield word, {"word": word}


@translate.stage(after=split, each=True, retries=Retries(2, delays=[3600, 7200]))
def look_up(ctx: Context, word: str) -> str:
    if not word.isalpha():
        raise Skip("nothing to translate")
    if word == "rude":
        raise Permanent("too rude")
    if ctx.attempt < 3:
        raise ConnectionError("the dictionary is closed")
    return WORDS[word]


@translate.stage(after=look_up)
def join(ctx: Context) -> list[str]:
    return [word for _, word in ctx.results("look_up")]


def test_one_function() -> None:
    assert call(split, args={"text": "a b"}).items == [Item("a", {"word": "a"}), Item("b", {"word": "b"})]
    assert call(look_up, args={"word": "hello"}, attempt=3).result == "bonjour"
    called = call(look_up, args={"word": "42"})
    print(f"one function: {called.outcome}, {called.reason}")


def test_a_whole_run(database: str) -> None:
    clock = FrozenClock()
    with Mill.open(database, translate, clock=clock) as mill:
        began = clock.now
        run = mill.start(translate, "letter", args={"text": "hello 42 rude"})
        drain(mill, until="idle")
        print(f"after 1 attempt of each: {mill.run(run.id).state}")
        drain(mill)  # moves the clock
        run = mill.run(run.id)
        print(f"after {(clock.now - began).seconds // 3600} hours: {run.state}, {run.result('join')}")
        for job in mill.jobs(run=run.id, state="failed"):
            print(f"failed: {job.key}, {job.error}")


if __name__ == "__main__":
    test_one_function()
    with TemporaryDirectory() as folder:
        test_a_whole_run(f"sqlite:///{folder}/tested.db")
