-- Returns the body of a redaction event: p_body with the overridden holds and retentions in front. Callers must not use the
-- names that such an event uses itself.
CREATE FUNCTION compaction_store.redaction_body(p_body text, p_overrides bigint[]) RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM compaction_store.refuse_bad_document('body', p_body);
    IF EXISTS (
        SELECT FROM json_object_keys(compaction_store.parsable(p_body)::json) AS k (name)
        WHERE k.name IN ('seqs', 'records', 'whole', 'overrides')
    ) THEN
        RAISE EXCEPTION 'the body must not have the names seqs, records, whole or overrides' USING ERRCODE = 'CS019';
    END IF;
    IF cardinality(p_overrides) = 0 THEN
        RETURN p_body;
    END IF;
    RETURN format('{"overrides":%s,%s', array_to_json(p_overrides), substring(p_body FROM 2));
END
$$;
