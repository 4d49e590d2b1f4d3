-- Append-only. Kinds are an open list: a later release may write others. critical says that the event changes what a view
-- is, so that a reader that does not know its kind can tell. login is the session's, written by the functions.
CREATE TABLE compaction_store.events (
    thread_uid uuid NOT NULL,
    pos bigint NOT NULL,
    created_at timestamptz NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    critical boolean NOT NULL,
    kind text COLLATE "C" NOT NULL,
    actor text COLLATE "C",
    login text COLLATE "C" NOT NULL,
    salt bytea,
    commitment bytea NOT NULL,
    entry bytea NOT NULL,
    body json,
    CONSTRAINT events_pkey PRIMARY KEY (thread_uid, pos),
    CONSTRAINT events_tenant_check CHECK (tenant <> ''),
    CONSTRAINT events_kind_check CHECK (kind ~ '^[a-z][a-z0-9_]{0,62}$')
);

-- Like messages_listed_idx, but with every row: a thread has few, and the pos of its first one is not known. The
-- condition is the one of compactions_listed_idx.
CREATE INDEX events_listed_idx ON compaction_store.events (tenant, thread_uid) WHERE (pos * 1) IS NOT NULL;
CREATE INDEX events_audit_idx ON compaction_store.events (tenant, created_at, thread_uid, pos);
-- Critical events of unknown kinds, which views refuse. The condition must be the one in refuse_unknown.
CREATE INDEX events_unknown_idx ON compaction_store.events (thread_uid, pos) WHERE critical AND kind NOT IN ('redaction');
