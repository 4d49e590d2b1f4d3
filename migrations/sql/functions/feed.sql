-- Returns a page of the entries of all threads of a tenant, in an order in which no entry can appear later before one
-- that was returned. p_xid, p_thread_uid, p_pos and p_entry are those of the last entry that was returned; NULL begins
-- with the first. An entry is returned once no running transaction can have a number as low as its feed_xid. Messages
-- are included only with p_messages, and content only with p_content.
CREATE FUNCTION compaction_store.feed(
    p_tenant text, p_xid bigint, p_thread_uid uuid, p_pos bigint, p_entry bytea, p_messages boolean, p_content boolean,
    p_limit integer
)
RETURNS TABLE (
    xid bigint, thread_uid uuid, pos bigint, entry bytea, type text, thread_id text, created_at timestamptz, actor text,
    login text, redacted boolean, facts text, content text, meta text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- Force the index, which has the order of the feed.
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_end bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    v_unused bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    v_xid bigint := coalesce(p_xid, 0);
    v_thread_uid uuid := coalesce(p_thread_uid, '00000000-0000-0000-0000-000000000000');
    v_pos bigint := coalesce(p_pos, 0);
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    IF compaction_store.is_distributed() THEN
        RAISE EXCEPTION 'a feed needs one server: each node of a cluster numbers its own transactions'
            USING ERRCODE = 'CS015';
    ELSIF EXISTS (SELECT FROM pg_subscription_rel AS r WHERE r.srrelid = 'compaction_store.heads'::regclass) THEN
        RAISE EXCEPTION 'a feed needs the server that the entries are written on: this one subscribes to another'
            USING ERRCODE = 'CS015';
    ELSIF EXISTS (
        SELECT FROM compaction_store.messages AS m
        WHERE m.tenant = p_tenant AND (m.pos + 0) IS NOT NULL AND m.feed_xid >= v_unused
    ) OR EXISTS (
        SELECT FROM compaction_store.compactions AS c
        WHERE c.tenant = p_tenant AND (c.pos + 0) IS NOT NULL AND c.feed_xid >= v_unused
    ) OR EXISTS (
        SELECT FROM compaction_store.events AS e
        WHERE e.tenant = p_tenant AND (e.pos + 0) IS NOT NULL AND e.feed_xid >= v_unused
    ) THEN
        RAISE EXCEPTION 'the entries have numbers of transactions that this server has not reached: they were restored'
            ' from a dump of another server' USING ERRCODE = 'CS031';
    ELSIF p_thread_uid IS NOT NULL AND NOT EXISTS (
        SELECT FROM compaction_store.messages AS m
        WHERE m.tenant = p_tenant AND (m.pos + 0) IS NOT NULL AND m.feed_xid = v_xid
            AND m.thread_uid = p_thread_uid AND m.pos = p_pos AND m.entry = p_entry
    ) AND NOT EXISTS (
        SELECT FROM compaction_store.compactions AS c
        WHERE c.tenant = p_tenant AND (c.pos + 0) IS NOT NULL AND c.feed_xid = v_xid
            AND c.thread_uid = p_thread_uid AND c.pos = p_pos AND c.entry = p_entry
    ) AND NOT EXISTS (
        SELECT FROM compaction_store.events AS e
        WHERE e.tenant = p_tenant AND (e.pos + 0) IS NOT NULL AND e.feed_xid = v_xid
            AND e.thread_uid = p_thread_uid AND e.pos = p_pos AND e.entry = p_entry
    ) THEN
        RAISE EXCEPTION 'the entry of the cursor is not in the database: %', CASE
            WHEN pg_is_in_recovery() THEN 'the standby has not received it yet, or it is of another database or tenant'
            ELSE 'it is of another database or tenant, or was lost in a failover or a restore'
        END USING ERRCODE = 'CS031';
    END IF;
    RETURN QUERY
        SELECT f.feed_xid, f.thread_uid, f.pos, f.entry, f.type, t.thread_id, f.created_at, f.actor, f.login,
            f.redacted, f.facts::text, f.content::text, f.meta::text
        FROM (
            (
                SELECT m.feed_xid, m.thread_uid, m.pos, m.entry, 'message' AS type, m.created_at, m.actor, m.login,
                    m.redacted_pos IS NOT NULL AS redacted,
                    json_build_object(
                        'seq', m.seq, 'role', m.role, 'tokens', m.tokens, 'counter', m.counter, 'key', m.key
                    ) AS facts,
                    CASE WHEN p_content THEN m.payload END AS content, CASE WHEN p_content THEN m.meta END AS meta
                FROM compaction_store.messages AS m
                WHERE p_messages AND m.tenant = p_tenant AND (m.pos + 0) IS NOT NULL
                    AND ROW(m.feed_xid, m.thread_uid, m.pos) > ROW(v_xid, v_thread_uid, v_pos) AND m.feed_xid < v_end
                    -- A row beyond the head is not an entry.
                    AND m.pos <= (SELECT h.last_pos FROM compaction_store.heads AS h WHERE h.thread_uid = m.thread_uid)
                ORDER BY m.feed_xid, m.thread_uid, m.pos LIMIT p_limit
            )
            UNION ALL
            (
                SELECT c.feed_xid, c.thread_uid, c.pos, c.entry, 'compaction', c.created_at, c.actor, c.login,
                    c.redacted_pos IS NOT NULL,
                    json_build_object(
                        'number', c.number, 'kind', c.kind, 'outcome', c.outcome, 'start_seq', c.start_seq,
                        'end_seq', c.end_seq, 'tokens_before', c.tokens_before, 'tokens_after', c.tokens_after,
                        'revokes', c.revokes, 'run_id', c.run_id, 'callback', c.callback, 'trigger', c.trigger,
                        'model', c.model, 'counter', c.counter
                    ),
                    CASE WHEN p_content THEN c.body END, NULL
                FROM compaction_store.compactions AS c
                WHERE c.tenant = p_tenant AND (c.pos + 0) IS NOT NULL
                    AND ROW(c.feed_xid, c.thread_uid, c.pos) > ROW(v_xid, v_thread_uid, v_pos) AND c.feed_xid < v_end
                    AND c.pos <= (SELECT h.last_pos FROM compaction_store.heads AS h WHERE h.thread_uid = c.thread_uid)
                ORDER BY c.feed_xid, c.thread_uid, c.pos LIMIT p_limit
            )
            UNION ALL
            (
                SELECT e.feed_xid, e.thread_uid, e.pos, e.entry, 'event', e.created_at, e.actor, e.login, false,
                    json_build_object('kind', e.kind, 'critical', e.critical),
                    CASE WHEN p_content THEN e.body END, NULL
                FROM compaction_store.events AS e
                WHERE e.tenant = p_tenant AND (e.pos + 0) IS NOT NULL
                    AND ROW(e.feed_xid, e.thread_uid, e.pos) > ROW(v_xid, v_thread_uid, v_pos) AND e.feed_xid < v_end
                    AND e.pos <= (SELECT h.last_pos FROM compaction_store.heads AS h WHERE h.thread_uid = e.thread_uid)
                ORDER BY e.feed_xid, e.thread_uid, e.pos LIMIT p_limit
            )
        ) AS f
        JOIN compaction_store.threads AS t ON t.thread_uid = f.thread_uid
        ORDER BY f.feed_xid, f.thread_uid, f.pos LIMIT p_limit;
END
$$;
