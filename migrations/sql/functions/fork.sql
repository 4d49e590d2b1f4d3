-- Makes a new thread that begins with a copy of another thread's entries up to p_at, or of all entries if p_at is NULL.
-- The new thread's first entry is an event that names the parent, the pos and the entry at that pos; the parent gets an
-- event that names the new thread. Both events name threads by thread_uid, because a name must be erasable and an event
-- is not. Content that was erased in the parent after p_at is erased in the copy by an event after the copies. p_key is
-- the key as a JSON string, with its quotes. A call with the salt or the key of an earlier fork of this thread writes
-- nothing and returns the first result.
CREATE FUNCTION compaction_store.fork(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_new_thread_id text, p_at bigint, p_actor text, p_salt bytea,
    p_key text, p_body text,
    OUT parent_uid uuid, OUT child_uid uuid, OUT child_id text, OUT at_pos bigint, OUT at_seq bigint,
    OUT child_head bytea, OUT event_pos bigint, OUT forked_at timestamptz, OUT replayed boolean
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_parent compaction_store.heads;
    v_head compaction_store.heads;
    v_copied bigint;
    v_now timestamptz;
    v_entry bytea;
    v_rest text;
    v_kind text;
    v_is_hidden boolean;
    v_event_body text;
    v_erased bigint[];
    v_seqs int8multirange;
    v_numbers int8multirange;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    PERFORM compaction_store.refuse_bad_name(p_tenant, p_new_thread_id);
    PERFORM compaction_store.refuse_bad_document('body', p_body);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    SELECT h.* INTO v_parent FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM compaction_store.refuse_no_head(p_thread_uid, p_tenant, p_thread_id);
    END IF;
    parent_uid := p_thread_uid;
    v_rest := CASE WHEN p_key IS NOT NULL THEN format(',"key":%s', p_key) ELSE '' END
        || CASE WHEN p_body = '{}' THEN '}' ELSE ',' || substring(p_body FROM 2) END;
    -- Leave out copies of fork events, because they name forks of the parent.
    v_copied := compaction_store.copied_to(p_thread_uid);
    SELECT f.child, f.at_pos, f.at_seq, f.head, e.pos, e.created_at
    INTO child_uid, at_pos, at_seq, child_head, event_pos, forked_at
    FROM compaction_store.events AS e CROSS JOIN LATERAL compaction_store.fork_of(e.body::text) AS f
    WHERE e.thread_uid = p_thread_uid AND e.pos > v_copied AND e.pos <= v_parent.last_pos AND e.kind = 'fork'
        AND f.child IS NOT NULL AND (e.salt = p_salt OR starts_with(f.rest, ',"key":' || p_key));
    replayed := FOUND;
    IF replayed THEN
        SELECT t.thread_id INTO child_id FROM compaction_store.threads AS t WHERE t.thread_uid = child_uid;
        RETURN;
    END IF;
    PERFORM compaction_store.refuse_erased(v_parent.erased_pos);
    IF v_parent.is_log THEN
        PERFORM compaction_store.refuse_in_log();
    END IF;
    at_pos := coalesce(p_at, v_parent.last_pos);
    IF at_pos < 1 OR at_pos > v_parent.last_pos THEN
        RAISE EXCEPTION 'no pos %: the last pos is %', at_pos, v_parent.last_pos USING ERRCODE = 'CS005', DETAIL = v_parent.last_pos::text;
    END IF;
    PERFORM compaction_store.refuse_unknown(p_thread_uid, at_pos, v_parent.last_number);
    at_seq := compaction_store.seq_at(p_thread_uid, at_pos);
    IF at_seq < 1 THEN
        RAISE EXCEPTION 'the thread has no message up to pos %', at_pos
            USING ERRCODE = 'CS005', DETAIL = v_parent.last_pos::text;
    END IF;
    v_entry := compaction_store.entry_at(p_thread_uid, at_pos, at_seq);
    IF v_entry IS NULL THEN
        RAISE EXCEPTION 'the thread has no entry at pos %', at_pos USING ERRCODE = 'CS020';
    END IF;

    IF compaction_store.is_distributed() THEN
        -- Make the new thread in the same shard, so that one function can access both threads. The client adds its
        -- name.
        v_now := clock_timestamp();
        child_uid := compaction_store.open_thread(
            p_tenant, p_new_thread_id, compaction_store.new_uid_beside(p_thread_uid, v_now), v_now,
            p_subject => v_parent.subject
        );
    ELSIF compaction_store.find_thread(p_tenant, p_new_thread_id) IS NOT NULL THEN
        RAISE EXCEPTION 'the name is taken by another thread' USING ERRCODE = 'CS022';
    ELSE
        child_uid := compaction_store.open_thread(p_tenant, p_new_thread_id, p_subject => v_parent.subject);
    END IF;
    SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = child_uid FOR UPDATE;
    IF v_head.last_pos <> 0 THEN
        RAISE EXCEPTION 'the name is taken by another thread' USING ERRCODE = 'CS022';
    END IF;
    child_id := p_new_thread_id;
    UPDATE compaction_store.threads AS t SET metadata = p.metadata
    FROM compaction_store.threads AS p WHERE t.thread_uid = child_uid AND p.thread_uid = p_thread_uid;
    PERFORM compaction_store.write_event(
        v_head, 'origin', false, p_actor, compaction_store.new_salt(),
        format(
            '{"parent":"%s","pos":%s,"seq":%s,"entry":"%s"%s', p_thread_uid, at_pos, at_seq, encode(v_entry, 'hex'),
            CASE WHEN p_body = '{}' THEN '}' ELSE ',' || substring(p_body FROM 2) END
        )
    );
    SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = child_uid;
    v_head := compaction_store.copy_log(v_parent, at_pos, v_head);

    SELECT array_agg(e.pos ORDER BY e.pos) INTO v_erased FROM compaction_store.events AS e
    WHERE e.thread_uid = p_thread_uid AND e.pos > at_pos AND e.pos <= v_parent.last_pos AND e.kind = 'redaction';
    IF v_erased IS NOT NULL THEN
        SELECT coalesce(range_agg(int8range(m.seq, m.seq, '[]')), '{}') INTO v_seqs FROM compaction_store.messages AS m
        WHERE m.thread_uid = child_uid AND m.redacted_pos > v_head.last_pos;
        SELECT coalesce(range_agg(int8range(c.number, c.number, '[]')), '{}') INTO v_numbers
        FROM compaction_store.compactions AS c WHERE c.thread_uid = child_uid AND c.redacted_pos > v_head.last_pos;
        IF NOT isempty(v_seqs) OR NOT isempty(v_numbers) THEN
            PERFORM compaction_store.write_event(
                v_head, 'redaction', true, p_actor, compaction_store.new_salt(),
                format(
                    '{"seqs":%s,"records":%s,"parent":"%s","parent_pos":%s,"reason":"erased in the parent"}',
                    compaction_store.ranges(v_seqs), compaction_store.ranges(v_numbers), p_thread_uid,
                    array_to_json(v_erased)
                )
            );
            SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = child_uid;
        END IF;
    END IF;
    -- The fork must be on hold if and only if the parent is on hold now, and the same applies to retention. Repeat the
    -- parent's newest hold or release, and its newest retention, unless they are among the copies or change nothing.
    FOR v_kind, v_event_body IN
        SELECT n.kind, n.body FROM (
            SELECT DISTINCT ON (e.kind = 'retention') e.pos, e.kind, e.body::text AS body
            FROM compaction_store.events AS e
            WHERE e.thread_uid = p_thread_uid AND e.pos > at_pos AND e.pos <= v_parent.last_pos
                AND e.kind IN ('hold', 'release', 'retention')
            ORDER BY e.kind = 'retention', e.pos DESC
        ) AS n ORDER BY n.pos
    LOOP
        CONTINUE WHEN v_kind = 'release' AND NOT EXISTS (
            SELECT FROM compaction_store.events AS e
            WHERE e.thread_uid = child_uid AND e.kind = 'hold' AND e.pos > (
                SELECT coalesce(max(r.pos), 0) FROM compaction_store.events AS r
                WHERE r.thread_uid = child_uid AND r.kind = 'release'
            )
        );
        PERFORM compaction_store.write_event(
            v_head, v_kind, false, p_actor, compaction_store.new_salt(), v_event_body
        );
        SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = child_uid;
    END LOOP;
    UPDATE compaction_store.heads AS h
    SET view_tokens = compaction_store.span_tokens(child_uid, v_head.last_pos, v_head.last_number, 1, v_head.last_seq),
        hidden_seq = compaction_store.hidden_seq(child_uid, v_head.last_number)
    WHERE h.thread_uid = child_uid
    RETURNING h.hidden_seq = h.last_seq INTO v_is_hidden;
    -- Refuse to fork a hidden state: the new thread would be hidden too, so nobody would find it.
    IF v_is_hidden AND p_at IS NULL THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    ELSIF v_is_hidden THEN
        RAISE EXCEPTION 'the thread is hidden at pos %, so its fork would be hidden too', at_pos
            USING ERRCODE = 'CS006';
    END IF;
    child_head := v_head.head;

    SELECT w.event_pos, w.written_at INTO event_pos, forked_at FROM compaction_store.write_event(
        v_parent, 'fork', false, p_actor, p_salt,
        format(
            '{"child":"%s","pos":%s,"seq":%s,"head":"%s"%s', child_uid, at_pos, at_seq, encode(child_head, 'hex'),
            v_rest
        )
    ) AS w;
END
$$;
