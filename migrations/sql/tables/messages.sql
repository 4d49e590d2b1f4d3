-- Append-only. payload is json and not jsonb, because the text is hashed byte for byte as it was sent. login is that of
-- the database session, which the caller cannot choose.
CREATE TABLE compaction_store.messages (
    thread_uid uuid NOT NULL,
    seq bigint NOT NULL,
    pos bigint NOT NULL,
    created_at timestamptz NOT NULL,
    redacted_pos bigint,
    tokens integer NOT NULL,
    call_size integer,
    feed_xid bigint NOT NULL DEFAULT ((pg_current_xact_id())::text)::bigint,
    tenant text COLLATE "C" NOT NULL,
    role text COLLATE "C",
    counter text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    actor text COLLATE "C",
    login text COLLATE "C" NOT NULL,
    salt bytea,
    commitment bytea NOT NULL,
    entry bytea NOT NULL,
    meta_commitment bytea,
    receipt text,
    meta json,
    payload json,
    CONSTRAINT messages_pkey PRIMARY KEY (thread_uid, seq),
    CONSTRAINT messages_tenant_check CHECK (tenant <> ''),
    CONSTRAINT messages_tokens_check CHECK (tokens >= 0),
    CONSTRAINT messages_texts_check CHECK (
        octet_length(role) <= 64 AND octet_length(counter) <= 255 AND octet_length(key) <= 272
        AND octet_length(receipt) <= 65536 AND octet_length(actor) <= 255 AND octet_length(login) <= 255
    )
);

CREATE UNIQUE INDEX messages_key_idx ON compaction_store.messages (thread_uid, key) WHERE key IS NOT NULL;
-- Lists the threads that have messages, so that verify_all finds messages whose head and name are gone. The index has
-- only a few messages of each thread, because more would slow down appends. It has several, so that deleting the first
-- message does not hide the others.
CREATE INDEX messages_listed_idx ON compaction_store.messages (tenant, thread_uid)
    WHERE seq IN (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024);
-- Lists the tenant's entries in the order of the feed. feed_xid is the number of the transaction that wrote the entry, or
-- that of the entry before it in the thread if that is greater: a transaction may have its number before it waits for
-- the thread. The condition is always true. Only the feed has this condition, so that no other query uses this index.
CREATE INDEX messages_feed_idx ON compaction_store.messages (tenant, feed_xid, thread_uid, pos) WHERE (pos + 0) IS NOT NULL;
