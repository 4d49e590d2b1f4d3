CREATE TABLE compaction_store.threads (
    thread_uid uuid NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    thread_id text COLLATE "C" NOT NULL,
    metadata json NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT threads_pkey PRIMARY KEY (thread_uid),
    CONSTRAINT threads_tenant_check CHECK (octet_length(tenant) BETWEEN 1 AND 255),
    CONSTRAINT threads_thread_id_check CHECK (octet_length(thread_id) BETWEEN 1 AND 255)
);

CREATE UNIQUE INDEX threads_tenant_thread_id_idx ON compaction_store.threads (tenant, thread_id);
