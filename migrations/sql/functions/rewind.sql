-- Ends the view of a thread at a seq, with one record that covers everything after the seq. p_kind is rewind, or clear
-- with p_seq 0. Records that cover messages on both sides of the seq are revoked first, outer records before those
-- inside them. Messages that a rewind or a clear has hidden stay hidden: if the seq is inside the span of such a
-- record, or at its end, the view ends before that span. Many rewinds in a row are thus one active record. Returns the
-- records of this run, or none if the view already ends there. A repeated call with the same run_id writes nothing and
-- returns the same records. p_expected_head, if given, must be the thread's head. p_hide also hides the thread until
-- the next append. p_revoked is the body of the revocations, and p_body that of the rewind or clear.
CREATE FUNCTION compaction_store.rewind(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_run_id uuid, p_seq bigint, p_kind text, p_hide boolean,
    p_expected_head bytea, p_actor text, p_revoked text, p_body text
) RETURNS TABLE (
    number bigint, pos bigint, created_at timestamptz, kind text, outcome text, start_seq bigint, end_seq bigint,
    tokens_before bigint, tokens_after bigint, source_count bigint, inputs bigint[], callback text, trigger text,
    actor text, login text, model text, counter text, revokes bigint, redacted_pos bigint, body text, entry bytea,
    thread_uid uuid
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_head compaction_store.heads;
    v_seq bigint := p_seq;
    v_revoked bigint[] := '{}';
    v_records json[] := '{}';
    v_number bigint;
    v_active bigint[];
    v_hidden bigint;
    v_covering compaction_store.compactions;
BEGIN
    IF (p_kind = 'rewind' AND p_hide IS NOT TRUE) IS NOT TRUE AND (p_kind = 'clear' AND p_seq = 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'p_kind must be rewind, or clear with p_seq 0; only a clear hides' USING ERRCODE = 'CS008';
    END IF;
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    RETURN QUERY SELECT * FROM compaction_store.run_records(p_thread_uid, p_run_id, v_head.last_number);
    IF FOUND THEN
        RETURN;
    END IF;
    PERFORM compaction_store.refuse_erased(v_head.erased_pos);
    PERFORM compaction_store.refuse_unknown(p_thread_uid, v_head.last_pos, v_head.last_number);
    IF p_expected_head IS NOT NULL THEN
        PERFORM compaction_store.refuse_other_entry(p_thread_uid, v_head.last_pos, v_head.last_seq, p_expected_head);
    END IF;
    IF (v_seq BETWEEN 0 AND v_head.last_seq) IS NOT TRUE THEN
        RAISE EXCEPTION 'no seq %: the last seq is %', v_seq, v_head.last_seq
            USING ERRCODE = 'CS014', DETAIL = v_head.last_seq::text;
    END IF;

    LOOP
        -- Find the outermost record in force around the seq. This takes two statements, because on a cluster, a query
        -- on a shard cannot call a function that reads tables.
        SELECT f.number INTO v_number
        FROM compaction_store.in_force(p_thread_uid, v_head.last_pos, v_head.last_number, 1) AS f
        WHERE f.start_seq <= v_seq AND f.end_seq >= v_seq AND f.number <> ALL (v_revoked)
        ORDER BY f.start_seq, f.end_seq DESC, f.number DESC
        LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT c.* INTO STRICT v_covering
        FROM compaction_store.compactions AS c WHERE c.thread_uid = p_thread_uid AND c.number = v_number;
        IF v_covering.kind IN ('rewind', 'clear') THEN
            v_seq := v_covering.start_seq - 1;
        ELSIF v_covering.end_seq > v_seq THEN
            v_revoked := v_revoked || v_covering.number;
        ELSE
            EXIT;
        END IF;
    END LOOP;
    IF p_hide THEN
        IF v_head.hidden_seq = v_head.last_seq THEN
            RETURN;
        END IF;
    ELSE
        SELECT array_agg(a.number) INTO v_active
        FROM compaction_store.active(p_thread_uid, v_head.last_pos, v_head.last_number) AS a WHERE a.start_seq > v_seq;
        SELECT coalesce(sum(c.end_seq - c.start_seq + 1), 0) INTO v_hidden
        FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid AND c.number = ANY (v_active) AND c.kind IN ('rewind', 'clear');
        IF v_hidden = v_head.last_seq - v_seq THEN
            RETURN;
        END IF;
    END IF;

    FOREACH v_number IN ARRAY v_revoked LOOP
        v_records := v_records || json_build_object(
            'columns', json_build_object(
                'kind', 'revocation', 'outcome', 'applied', 'revokes', v_number, 'actor', p_actor, 'trigger', p_kind
            ),
            'salt', encode(compaction_store.new_salt(), 'hex'), 'body', p_revoked
        );
    END LOOP;
    v_records := v_records || json_build_object(
        'columns', json_build_object(
            'kind', p_kind, 'outcome', 'applied', 'start_seq', v_seq + 1, 'end_seq', v_head.last_seq,
            'tokens_after', 0, 'actor', p_actor, 'trigger', CASE WHEN p_hide THEN 'hide' ELSE 'manual' END
        ),
        'salt', encode(compaction_store.new_salt(), 'hex'), 'body', p_body
    );
    RETURN QUERY SELECT * FROM compaction_store.commit_compactions(
        p_thread_uid, p_tenant, p_thread_id, p_run_id, v_head.last_pos, v_head.head, array_to_json(v_records)::text
    );
END
$$;
