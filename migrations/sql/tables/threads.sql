-- One row for each thread. The thread_uid begins with the time of the thread's creation. salt and commitment belong to
-- the name. An erased thread is a stub: its name is "erased:" followed by its thread_uid, and its salt is NULL.
CREATE TABLE compaction_store.threads (
    thread_uid uuid NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    thread_id text COLLATE "C" NOT NULL,
    salt bytea,
    commitment bytea NOT NULL,
    metadata json NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL,
    CONSTRAINT threads_pkey PRIMARY KEY (thread_uid),
    CONSTRAINT threads_tenant_check CHECK (octet_length(tenant) BETWEEN 1 AND 255),
    CONSTRAINT threads_thread_id_check CHECK (octet_length(thread_id) BETWEEN 1 AND 255),
    CONSTRAINT threads_thread_uid_check CHECK (compaction_store.born_in(thread_uid, created_at)),
    CONSTRAINT threads_stub_check CHECK (
        (salt IS NULL) = starts_with(thread_id, 'erased:')
        AND (salt IS NOT NULL OR thread_id = 'erased:' || thread_uid)
    )
);

CREATE UNIQUE INDEX threads_tenant_thread_id_idx ON compaction_store.threads (tenant, thread_id);
