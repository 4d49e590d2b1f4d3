-- Appends messages together with records of compactions that a provider made by itself and that the messages report,
-- all or none. p_observed is a JSON array of records as for commit_compactions. Each record also has "message", the
-- 1-based index of the message that reports it, and "folds", which is true if the record covers everything before that
-- message. A retry writes nothing.
CREATE FUNCTION compaction_store.append_observed(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_payloads text[], p_salts bytea, p_roles text[],
    p_tokens integer[], p_counter text, p_key text, p_metas text[], p_receipt text, p_expected_seq bigint,
    p_run_id uuid, p_observed text, p_fresh boolean DEFAULT false, p_expected_head bytea DEFAULT NULL::bytea,
    p_seen_head bytea DEFAULT NULL::bytea, p_durable boolean DEFAULT true, p_actor text DEFAULT NULL::text,
    p_subject text DEFAULT NULL::text,
    OUT first_seq bigint, OUT first_pos bigint, OUT written_at timestamptz, OUT chain_head bytea,
    OUT replayed boolean, OUT written_uid uuid, OUT written_login text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_records text;
    v_pos bigint;
    v_number bigint;
    v_run_id uuid;
BEGIN
    -- Store a single message by append, because a retry that observes no compactions calls append, and must find what
    -- append would have stored.
    IF cardinality(p_payloads) = 1 THEN
        SELECT * INTO first_seq, first_pos, written_at, chain_head, replayed, written_uid, written_login FROM compaction_store.append(
            p_thread_uid, p_tenant, p_thread_id, p_payloads[1], p_salts, p_roles[1], p_tokens[1], p_counter, p_key,
            p_metas[1], p_receipt, p_expected_seq, p_fresh, p_expected_head, p_seen_head, p_durable, p_actor, p_subject
        );
    ELSE
        SELECT * INTO first_seq, first_pos, written_at, chain_head, replayed, written_uid, written_login FROM compaction_store.append_many(
            p_thread_uid, p_tenant, p_thread_id, p_payloads, p_salts, p_roles, p_tokens, p_counter, p_key, p_metas,
            p_receipt, p_expected_seq, p_fresh, p_expected_head, p_seen_head, p_durable, p_actor, p_subject
        );
    END IF;
    p_thread_uid := written_uid;
    IF replayed THEN
        -- The first call wrote its records after its messages, and returned the entry of the last record as the head.
        v_pos := first_pos + cardinality(p_payloads);
        v_number := compaction_store.number_at(p_thread_uid, v_pos);
        SELECT c.run_id INTO v_run_id FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid AND c.number = v_number AND c.pos = v_pos AND c.outcome = 'observed';
        IF FOUND THEN
            SELECT c.entry INTO STRICT chain_head FROM compaction_store.compactions AS c
            WHERE c.thread_uid = p_thread_uid AND c.run_id = v_run_id ORDER BY c.number DESC LIMIT 1;
        END IF;
        RETURN;
    END IF;
    -- A record with "folds" spans the messages before the one that reports it, or has no span if there are none.
    SELECT json_agg(json_build_object(
        'columns', (
            (o.value -> 'columns')::jsonb || jsonb_build_object(
                'outcome', 'observed',
                'start_seq', CASE WHEN o.folds AND o.until > 0 THEN 1 END,
                'end_seq', CASE WHEN o.folds AND o.until > 0 THEN o.until END
            )
        )::json,
        'salt', o.value -> 'salt',
        'body', o.value -> 'body'
    ) ORDER BY o.i)::text INTO v_records
    FROM (
        SELECT r.value, r.i, (r.value ->> 'folds')::boolean AS folds,
            first_seq + (r.value ->> 'message')::integer - 2 AS until
        FROM json_array_elements(p_observed::json) WITH ORDINALITY AS r (value, i)
    ) AS o;
    PERFORM compaction_store.commit_compactions(p_thread_uid, p_tenant, p_thread_id, p_run_id, first_pos, NULL, v_records);
    SELECT h.head INTO chain_head FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
END
$$;
