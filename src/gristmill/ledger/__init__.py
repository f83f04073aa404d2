"""The ledger: the tables, and the only code that changes them.

Reading order: schema (what is stored), store (how a verb becomes one transaction), then one module per group of verbs:
start, claim, finish (with flow: what a stage's last item sets off), emit, stop, bulk (for many at once), remove, prune,
workers, queues, repair; infos for what workers ask, read for what others do.
"""
