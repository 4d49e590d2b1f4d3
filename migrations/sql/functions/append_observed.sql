-- Appends messages, and with them the records of compactions that a provider made by itself and their payloads tell of:
-- one call, all or nothing. p_observed is a JSON array of records as commit_compactions takes them, each with the
-- message it is told by, 1 the first; a "folds" record is about everything before that message. A replay writes nothing.
CREATE FUNCTION compaction_store.append_observed(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_payloads text[], p_salts bytea, p_roles text[],
    p_tokens integer[], p_counter text, p_key text, p_metas text[], p_receipt text, p_expected_seq bigint,
    p_run_id uuid, p_observed text, p_fresh boolean DEFAULT false,
    OUT first_seq bigint, OUT first_pos bigint, OUT written_at timestamptz, OUT chain_head bytea,
    OUT replayed boolean
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_records text;
BEGIN
    -- A retry that tells of nothing comes by the other door: both must store one message alike.
    IF cardinality(p_payloads) = 1 THEN
        SELECT * INTO first_seq, first_pos, written_at, chain_head, replayed FROM compaction_store.append(
            p_thread_uid, p_tenant, p_thread_id, p_payloads[1], p_salts, p_roles[1], p_tokens[1], p_counter, p_key,
            p_metas[1], p_receipt, p_expected_seq, p_fresh
        );
    ELSE
        SELECT * INTO first_seq, first_pos, written_at, chain_head, replayed FROM compaction_store.append_many(
            p_thread_uid, p_tenant, p_thread_id, p_payloads, p_salts, p_roles, p_tokens, p_counter, p_key, p_metas,
            p_receipt, p_expected_seq, p_fresh
        );
    END IF;
    IF replayed THEN
        RETURN;
    END IF;
    -- The seq of the message before the one that tells of it; nothing is before the first.
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
    PERFORM compaction_store.commit_compactions(p_thread_uid, p_tenant, p_run_id, first_pos, v_records);
    SELECT h.head INTO chain_head FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
END
$$;
