"""The tables of deliveries: part of the schema, where hardly anybody needs them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text


def delivery_tables(metadata: MetaData) -> tuple[Table, Table]:
    # By which delivery workers are told of jobs in a queue, and when somebody last said so: once a minute, not per job.
    ringer = Table(
        "gm_ringer",
        metadata,
        Column("queue_id", Integer, primary_key=True, autoincrement=False),
        Column("delivery", Text, primary_key=True),
        Column("at", BigInteger, nullable=False),
    )
    # Jobs that were published in Redis, for RQ or Arq; others have no row here.
    message = Table(
        "gm_message",
        metadata,
        Column("job_id", BigInteger, primary_key=True, autoincrement=False),
        Column("attempt", Integer, nullable=False),  # that it is for: the claim will have this number
        Column("backend_job_id", Text, nullable=False),
        # What Redis said with it: since when it has its data, and its number since then. One that lost its data, or came
        # back with older ones, says something else now; 0: the message was declined.
        Column("era", BigInteger, nullable=False),
        Column("number", BigInteger, nullable=False),
        Column("at", BigInteger, nullable=False),
    )
    return ringer, message
