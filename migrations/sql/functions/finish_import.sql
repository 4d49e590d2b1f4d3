-- Moves the rows that this transaction staged into the log, as one new thread. The chain is recomputed from the genesis
-- over all three kinds of entries, and applied records are checked against their messages. If the thread exists
-- already, nothing is added, and its pos and head are returned. The staged rows are deleted, and on a single server
-- also those of abandoned imports. An erased thread has neither name nor salt; its genesis needs only the commitment to
-- the name.
CREATE FUNCTION compaction_store.finish_import(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_name_salt bytea, p_name_commitment bytea, p_metadata text, p_subject text,
    p_last_seq bigint, p_last_number bigint, p_last_pos bigint, p_head bytea,
    OUT found_pos bigint, OUT found_head bytea
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET work_mem = '64MB'
SET jit = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_import bigint := pg_current_xact_id()::text::bigint;
    v_genesis bytea := compaction_store.genesis(p_thread_uid, p_tenant, p_name_commitment);
    v_first_at timestamptz;
    v_sound boolean;
    v_counts bigint[];
    v_last record;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    PERFORM compaction_store.queue_up(p_thread_uid);
    IF p_thread_id IS DISTINCT FROM 'erased:' || p_thread_uid THEN
        PERFORM compaction_store.refuse_bad_name(p_tenant, p_thread_id, true);
        IF (
            octet_length(p_name_salt) = 16
            AND compaction_store.name_commitment(p_name_salt, p_thread_id) = p_name_commitment
        ) IS NOT TRUE THEN
            RAISE EXCEPTION 'the name must be the one that the thread was made with' USING ERRCODE = 'CS010';
        END IF;
    ELSIF p_name_salt IS NOT NULL THEN
        RAISE EXCEPTION 'an erased thread must have no salt' USING ERRCODE = 'CS010';
    END IF;
    PERFORM compaction_store.refuse_bad_document('metadata', p_metadata);
    PERFORM compaction_store.refuse_bad_message(s.body, s.role, s.meta)
    FROM compaction_store.staged AS s WHERE s.thread_uid = p_thread_uid AND s.staged_by = v_import AND s.type = 'message' AND s.body IS NOT NULL;
    PERFORM compaction_store.refuse_bad_receipt(s.receipt)
    FROM compaction_store.staged AS s WHERE s.thread_uid = p_thread_uid AND s.staged_by = v_import AND s.type = 'message';
    PERFORM compaction_store.refuse_bad_document('body', s.body)
    FROM compaction_store.staged AS s WHERE s.thread_uid = p_thread_uid AND s.staged_by = v_import AND s.type = 'event';
    IF EXISTS (
        SELECT FROM compaction_store.staged AS s
        WHERE s.thread_uid = p_thread_uid AND s.staged_by = v_import AND s.type = 'event'
            AND compaction_store.is_of_log(s.kind) <> (p_thread_id = 'compaction-store:log')
    ) THEN
        PERFORM compaction_store.refuse_in_log();
    END IF;
    -- A retention whose body begins with another field would be listed with an end or a lock, but would forbid nothing.
    IF EXISTS (
        SELECT FROM compaction_store.staged AS s
        WHERE s.thread_uid = p_thread_uid AND s.staged_by = v_import AND s.type = 'event' AND s.kind = 'retention'
            AND (
                compaction_store.retained_until(s.body) IS NULL
                OR NOT compaction_store.is_locked(s.body) AND EXISTS (
                    SELECT FROM json_object_keys(compaction_store.parsable(s.body)::json) AS k (name)
                    WHERE k.name = 'locked'
                )
            )
    ) THEN
        RAISE EXCEPTION 'the body of a retention must begin with "until", and then "locked" if it has this field'
            USING ERRCODE = 'CS019';
    END IF;
    -- Other functions read the start of the bodies of origins and forks, so check it. A fork must have as many copies
    -- as its origin says, because the entries after the copies count as written in the fork.
    IF EXISTS (
        SELECT FROM compaction_store.staged AS s
        WHERE s.thread_uid = p_thread_uid AND s.staged_by = v_import AND s.type = 'event' AND (CASE s.kind
            WHEN 'fork' THEN (compaction_store.fork_of(s.body)).child IS NULL
            WHEN 'origin' THEN s.body !~ (
                '^[{]"parent":"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}","pos":[0-9]{1,18},"seq":[0-9]{1,18},'
                '"entry":"[0-9a-f]{64}"[,}]'
            ) OR (s.pos = 1 AND substring(s.body FROM '"pos":([0-9]+)')::bigint >= p_last_pos)
        END) IS TRUE
    ) THEN
        RAISE EXCEPTION 'the body of an origin or a fork must begin with the thread, pos and seq of the copies'
            USING ERRCODE = 'CS019';
    END IF;
    SELECT min(s.created_at) INTO v_first_at
    FROM compaction_store.staged AS s WHERE s.thread_uid = p_thread_uid AND s.staged_by = v_import AND s.pos = 1;
    IF compaction_store.born_in(p_thread_uid, v_first_at) IS NOT TRUE THEN
        RAISE EXCEPTION 'thread_uid must be a UUID of version 7 with the time of the first entry'
            USING ERRCODE = 'CS010';
    END IF;
    INSERT INTO compaction_store.threads (thread_uid, tenant, thread_id, salt, commitment, metadata, created_at)
    VALUES (p_thread_uid, p_tenant, p_thread_id, p_name_salt, p_name_commitment, p_metadata::json, v_first_at)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT h.last_pos, h.head INTO found_pos, found_head
        FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
        IF NOT FOUND THEN
            PERFORM compaction_store.refuse_taken(p_tenant, p_thread_id);
        END IF;
        DELETE FROM compaction_store.staged AS s WHERE s.thread_uid = p_thread_uid AND s.staged_by = v_import;
        RETURN;
    END IF;
    INSERT INTO compaction_store.heads (thread_uid, tenant, head, is_log, subject)
    VALUES (p_thread_uid, p_tenant, v_genesis, p_thread_id = 'compaction-store:log', p_subject);

    INSERT INTO compaction_store.messages (
        thread_uid, tenant, seq, pos, created_at, redacted_pos, tokens, call_size, role, counter, key, actor, login,
        salt, commitment, entry, meta_commitment, receipt, meta, payload
    )
    SELECT
        p_thread_uid, p_tenant, s.ordinal, s.pos, s.created_at, s.redacted_pos, s.tokens, s.call_size, s.role, s.counter,
        s.key, s.actor, s.login, s.salt, s.commitment, s.entry, s.meta_commitment, s.receipt, s.meta::json, s.body::json
    FROM compaction_store.staged AS s WHERE s.thread_uid = p_thread_uid AND s.staged_by = v_import AND s.type = 'message';
    INSERT INTO compaction_store.compactions (
        thread_uid, tenant, number, pos, created_at, redacted_pos, start_seq, end_seq, tokens_before, tokens_after,
        source_count, revokes, run_id, kind, outcome, callback, trigger, actor, login, model, counter, inputs,
        source_before, source_end, salt, commitment, entry, body
    )
    SELECT
        p_thread_uid, p_tenant, s.ordinal, s.pos, s.created_at, s.redacted_pos, s.start_seq, s.end_seq, s.tokens_before,
        s.tokens_after, s.source_count, s.revokes, s.run_id, s.kind, s.outcome, s.callback, s.trigger, s.actor, s.login,
        s.model, s.counter, s.inputs, s.source_before, s.source_end, s.salt, s.commitment, s.entry, s.body::json
    FROM compaction_store.staged AS s WHERE s.thread_uid = p_thread_uid AND s.staged_by = v_import AND s.type = 'compaction';
    INSERT INTO compaction_store.events (
        thread_uid, tenant, pos, created_at, kind, critical, actor, login, salt, commitment, entry, body
    )
    SELECT
        p_thread_uid, p_tenant, s.pos, s.created_at, s.kind, s.critical, s.actor, s.login, s.salt, s.commitment, s.entry, s.body::json
    FROM compaction_store.staged AS s WHERE s.thread_uid = p_thread_uid AND s.staged_by = v_import AND s.type = 'event';
    DELETE FROM compaction_store.staged AS s WHERE s.thread_uid = p_thread_uid AND s.staged_by = v_import;
    -- Remove the rows of abandoned imports. A cluster needs no removal here, because stage removes old rows.
    IF NOT compaction_store.is_distributed() THEN
        DELETE FROM compaction_store.staged AS s
        WHERE s.staged_by < pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    END IF;

    -- The inner query hashes the content, so that the window functions sort hashes and not whole contents.
    SELECT
        array[count(*) FILTER (WHERE r.kind = 'message'), count(*) FILTER (WHERE r.kind = 'compaction'), count(*)],
        bool_and(coalesce(
            r.sound
            AND r.pos = r.place
            AND r.ordinal = CASE r.kind WHEN 'message' THEN r.seq WHEN 'compaction' THEN r.number ELSE 0 END
            AND r.created_at >= r.before_at
            AND r.entry = compaction_store.entry(r.before, r.pos, r.ordinal, r.created_at, r.header, r.commitment),
            false
        ))
    INTO v_counts, v_sound
    FROM (
        SELECT n.*,
            row_number() OVER w AS place,
            count(*) FILTER (WHERE n.kind = 'message') OVER w AS seq,
            count(*) FILTER (WHERE n.kind = 'compaction') OVER w AS number,
            lag(n.entry, 1, v_genesis) OVER w AS before,
            lag(n.created_at, 1, '-infinity') OVER w AS before_at
        FROM (
            SELECT 'message' AS kind, m.pos, m.seq AS ordinal, m.created_at, m.entry, m.commitment,
                compaction_store.message_header(
                    m.role, m.tokens, m.counter, m.key, m.call_size, m.receipt, m.actor, m.login, m.meta_commitment
                ) AS header,
                m.tenant = p_tenant AND CASE
                    WHEN m.redacted_pos IS NULL THEN octet_length(m.salt) = 16
                        AND m.commitment = compaction_store.commitment(m.salt, m.payload::text)
                        AND m.meta_commitment
                            IS NOT DISTINCT FROM compaction_store.meta_commitment(m.salt, m.meta::text)
                    ELSE m.salt IS NULL AND m.payload IS NULL AND m.meta IS NULL
                END AS sound
            FROM compaction_store.messages AS m WHERE m.thread_uid = p_thread_uid
            UNION ALL
            SELECT 'compaction', c.pos, c.number, c.created_at, c.entry, c.commitment,
                compaction_store.compaction_header(ROW(c.*)::compaction_store.compactions),
                c.tenant = p_tenant AND CASE
                    WHEN c.redacted_pos IS NULL THEN octet_length(c.salt) = 16
                        AND c.commitment = compaction_store.commitment(c.salt, c.body::text)
                    ELSE c.salt IS NULL AND c.body IS NULL
                END
            FROM compaction_store.compactions AS c WHERE c.thread_uid = p_thread_uid
            UNION ALL
            SELECT 'event', e.pos, 0, e.created_at, e.entry, e.commitment,
                compaction_store.event_header(e.kind, e.critical, e.actor, e.login),
                e.tenant = p_tenant AND octet_length(e.salt) = 16
                    AND e.commitment = compaction_store.commitment(e.salt, e.body::text)
            FROM compaction_store.events AS e WHERE e.thread_uid = p_thread_uid
            -- Without this, the planner would merge the two queries.
            OFFSET 0
        ) AS n
        WINDOW w AS (ORDER BY n.pos)
    ) AS r;
    IF v_sound IS DISTINCT FROM true OR v_counts IS DISTINCT FROM array[p_last_seq, p_last_number, p_last_pos] THEN
        RAISE EXCEPTION 'the imported rows do not form a chain' USING ERRCODE = 'CS010';
    END IF;
    -- Each erased row must name a later redaction.
    IF EXISTS (
        SELECT FROM (
            SELECT m.pos, m.redacted_pos FROM compaction_store.messages AS m
            WHERE m.thread_uid = p_thread_uid AND m.redacted_pos IS NOT NULL
            UNION ALL
            SELECT c.pos, c.redacted_pos FROM compaction_store.compactions AS c
            WHERE c.thread_uid = p_thread_uid AND c.redacted_pos IS NOT NULL
        ) AS r
        WHERE NOT EXISTS (
            SELECT FROM compaction_store.events AS e
            WHERE e.thread_uid = p_thread_uid AND e.pos = r.redacted_pos AND e.pos > r.pos AND e.kind = 'redaction'
        )
    ) THEN
        RAISE EXCEPTION 'an imported row is erased but no redaction erased it' USING ERRCODE = 'CS010';
    END IF;
    PERFORM compaction_store.refuse_unsound_records(p_thread_uid);
    PERFORM compaction_store.refuse_bad_record(ROW(c.*)::compaction_store.compactions, c.body::text)
    FROM compaction_store.compactions AS c WHERE c.thread_uid = p_thread_uid AND c.redacted_pos IS NULL;

    SELECT e.pos, e.created_at, e.entry INTO STRICT v_last FROM (
        SELECT m.pos, m.created_at, m.entry FROM compaction_store.messages AS m
        WHERE m.thread_uid = p_thread_uid AND m.seq = p_last_seq
        UNION ALL
        SELECT c.pos, c.created_at, c.entry FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid AND c.number = p_last_number
        UNION ALL
        SELECT v.pos, v.created_at, v.entry FROM compaction_store.events AS v
        WHERE v.thread_uid = p_thread_uid AND v.pos = p_last_pos
    ) AS e ORDER BY e.pos DESC LIMIT 1;
    IF v_last.entry IS DISTINCT FROM p_head THEN
        RAISE EXCEPTION 'the imported rows end with another head' USING ERRCODE = 'CS010';
    END IF;
    -- Times never go back, so it is enough to check the first and the last one. The clocks of other servers may be up
    -- to a day ahead.
    IF v_first_at < '0001-01-01 00:00+00'::timestamptz
        OR v_last.created_at >= least('10000-01-01 00:00+00'::timestamptz, clock_timestamp() + interval '1 day')
    THEN
        RAISE EXCEPTION 'times must not be before the year 1 or more than a day ahead of this clock'
            USING ERRCODE = 'CS010';
    END IF;
    UPDATE compaction_store.heads AS h
    SET last_seq = p_last_seq, last_number = p_last_number, last_pos = p_last_pos, last_at = v_last.created_at,
        active_at = coalesce(
            (SELECT m.created_at FROM compaction_store.messages AS m WHERE m.thread_uid = p_thread_uid AND m.seq = p_last_seq),
            v_first_at
        ),
        head = p_head, view_tokens = compaction_store.span_tokens(p_thread_uid, p_last_pos, p_last_number, 1, p_last_seq),
        hidden_seq = compaction_store.hidden_seq(p_thread_uid, p_last_number),
        erased_pos = (
            SELECT p_last_pos FROM compaction_store.threads AS t
            WHERE t.thread_uid = p_thread_uid AND t.thread_id = 'erased:' || t.thread_uid
        )
    WHERE h.thread_uid = p_thread_uid;
    -- A fork that is stored names its parent's key and the entry that it was made at. Another thread with this key would
    -- make the fork look changed, and would keep the true parent out. On a cluster, the fork may be in another shard.
    IF NOT compaction_store.is_distributed() AND EXISTS (
        SELECT FROM (
            SELECT regexp_match(e.body::text, '"pos":([0-9]{1,18}),"seq":[0-9]{1,18},"entry":"([0-9a-f]{64})"') AS parts
            FROM compaction_store.events AS e
            WHERE e.tenant = p_tenant AND e.pos = 1 AND e.kind = 'origin'
                AND substring(e.body::text, 12, 36) = p_thread_uid::text
        ) AS o
        WHERE compaction_store.entry_at(p_thread_uid, o.parts[1]::bigint) IS DISTINCT FROM decode(o.parts[2], 'hex')
    ) THEN
        RAISE EXCEPTION 'the thread must have the entry at which a stored fork of it was made' USING ERRCODE = 'CS010';
    END IF;
END
$$;
