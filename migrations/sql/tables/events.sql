-- Append-only. A later release may write other kinds. critical says that the event changes how views are computed,
-- which a reader must know even if it does not know the kind. login is that of the database session, which the caller
-- cannot choose.
CREATE TABLE compaction_store.events (
    thread_uid uuid NOT NULL,
    pos bigint NOT NULL,
    created_at timestamptz NOT NULL,
    feed_xid bigint NOT NULL DEFAULT ((pg_current_xact_id())::text)::bigint,
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
    CONSTRAINT events_kind_check CHECK (kind ~ '^[a-z][a-z0-9_]{0,62}$'),
    CONSTRAINT events_texts_check CHECK (octet_length(actor) <= 255 AND octet_length(login) <= 255)
);

-- Like messages_listed_idx, but with every row, because a thread has few events, and the pos of its first event is not
-- known. The condition is always true, like that of compactions_listed_idx.
CREATE INDEX events_listed_idx ON compaction_store.events (tenant, thread_uid) WHERE (pos * 1) IS NOT NULL;
-- The forks of a tenant. An import looks for those that name the imported thread as their parent.
CREATE INDEX events_origin_idx ON compaction_store.events (tenant, thread_uid) WHERE pos = 1 AND kind = 'origin';
CREATE INDEX events_audit_idx ON compaction_store.events (tenant, created_at, thread_uid, pos);
-- The rules in the log of a tenant, which every erasure reads.
CREATE INDEX events_rule_idx ON compaction_store.events (thread_uid, pos) WHERE kind = 'rule';
-- The critical events of unknown kinds. Views of a thread that has one are refused. The condition must be the same as
-- in refuse_unknown.
CREATE INDEX events_unknown_idx ON compaction_store.events (thread_uid, pos) WHERE critical AND kind NOT IN ('redaction');
-- Like messages_feed_idx.
CREATE INDEX events_feed_idx ON compaction_store.events (tenant, feed_xid, thread_uid, pos) WHERE (pos + 0) IS NOT NULL;
