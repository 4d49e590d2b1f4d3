-- Append-only: redactions, holds, releases, retentions (import and checkpoint are reserved kinds).
CREATE TABLE compaction_store.events (
    thread_uid uuid NOT NULL,
    pos bigint NOT NULL,
    created_at timestamptz NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    actor text COLLATE "C",
    salt bytea,
    commitment bytea NOT NULL,
    entry bytea NOT NULL,
    body json,
    CONSTRAINT events_pkey PRIMARY KEY (thread_uid, pos),
    CONSTRAINT events_tenant_check CHECK (tenant <> ''),
    CONSTRAINT events_kind_check CHECK (
        kind IN ('redaction', 'hold', 'release', 'retention', 'import', 'checkpoint')
    )
);

-- As messages_listed_idx, but with every row: a thread has few, and the pos of its first one is not known. The condition is
-- as in compactions_listed_idx.
CREATE INDEX events_listed_idx ON compaction_store.events (tenant, thread_uid) WHERE (pos * 1) IS NOT NULL;
