-- Only on a cluster. One row for each thread that is not erased, with its name and its thread_uid. Threads are
-- distributed by thread_uid, so a unique index over their names is impossible, because it would span shards. This table
-- is distributed by a hash of the name, so it can have such an index. The thread's own row has the name too, and
-- verify_all compares the two.
CREATE TABLE compaction_store.names (
    name_uid uuid NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    thread_id text COLLATE "C" NOT NULL,
    thread_uid uuid NOT NULL,
    CONSTRAINT names_pkey PRIMARY KEY (name_uid)
);

CREATE INDEX names_thread_uid_idx ON compaction_store.names (tenant, thread_uid);
