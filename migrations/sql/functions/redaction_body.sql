-- Returns the body of a redaction event: the holds and retentions that were overridden, the thread_uids of the forks
-- that have the messages, and p_body. p_forks is the result of redact_forks; p_spares says that the forks were left
-- alone. p_body must not have names that such an event uses itself. p_forbidding is a result of in_hold. For the body of
-- a refusal, p_name is 'forbidden_by'.
CREATE FUNCTION compaction_store.redaction_body(
    p_body text, p_forbidding bigint[], p_forks json DEFAULT NULL::json, p_spares boolean DEFAULT false,
    p_name text DEFAULT 'overrides'::text
) RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM compaction_store.refuse_bad_document('body', p_body);
    IF EXISTS (
        SELECT FROM json_object_keys(compaction_store.parsable(p_body)::json) AS k (name)
        WHERE k.name IN ('seqs', 'records', 'whole', 'overrides', 'forks', 'spared_forks', 'before', 'parent', 'refused', 'because', 'forbidden_by')
    ) THEN
        RAISE EXCEPTION 'the body must not have field names that a redaction uses itself' USING ERRCODE = 'CS019';
    END IF;
    IF json_array_length(p_forks) > 0 THEN
        p_body := format(
            '{"%s":%s,%s', CASE WHEN p_spares THEN 'spared_forks' ELSE 'forks' END,
            (SELECT json_agg(f.value -> 'thread_uid') FROM json_array_elements(p_forks) AS f), substring(p_body FROM 2)
        );
    END IF;
    IF cardinality(p_forbidding) > 0 THEN
        p_body := format(
            '{"%s":%s,%s', p_name, regexp_replace(array_to_json(p_forbidding)::text, '^[[]0', '["rule"'),
            substring(p_body FROM 2)
        );
    END IF;
    RETURN p_body;
END
$$;
