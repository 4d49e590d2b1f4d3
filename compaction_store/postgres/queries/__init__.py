"""All SQL statements of a store, as plain functions that take a connection.

Each function sends one statement or one short transaction. No function retries, logs or runs a caller's code; only the
transaction of `checkpointing` stays open while a caller's code runs. Every write to the log calls a SQL function, and
so do nearly all reads of a single thread.
"""

from compaction_store.postgres.driver.cursor import Connection, fetch, reading
from compaction_store.postgres.queries.across_threads import *
from compaction_store.postgres.queries.checkpoints import *
from compaction_store.postgres.queries.functions import *
from compaction_store.postgres.queries.listing import *
from compaction_store.postgres.queries.loads import *
from compaction_store.postgres.queries.one_thread import *
from compaction_store.postgres.queries.server import *
