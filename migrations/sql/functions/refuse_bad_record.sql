-- Raises an error if the body of a compaction record breaks a rule of docs/integrity.md, section 2, or if its token
-- count could make later appends overflow. The body of a record of an unknown kind is not checked. A replacement may
-- have a system message only if the span has one, because compaction must not give text more authority.
CREATE FUNCTION compaction_store.refuse_bad_record(p_record compaction_store.compactions, p_body text) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_messages json;
BEGIN
    PERFORM compaction_store.refuse_bad_document('body', p_body);
    IF p_record.outcome = 'applied' AND p_record.kind = 'revocation'
        AND (compaction_store.parsable(p_body)::json -> 'replacement') IS NOT NULL
    THEN
        RAISE EXCEPTION 'the body of a revocation must have no replacement' USING ERRCODE = 'CS019';
    END IF;
    IF p_record.outcome <> 'applied'
        OR p_record.kind NOT IN ('summary', 'truncation', 'removal', 'rewind', 'clear', 'adoption')
    THEN
        RETURN;
    END IF;
    IF (p_record.tokens_after BETWEEN 0 AND 2147483647) IS NOT TRUE THEN
        RAISE EXCEPTION 'tokens_after must be an integer from 0 to 2147483647' USING ERRCODE = 'CS019';
    END IF;
    v_messages := compaction_store.parsable(p_body)::json -> 'replacement';
    IF json_typeof(v_messages) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'the replacement in the body must be a list of messages' USING ERRCODE = 'CS019';
    END IF;
    IF EXISTS (SELECT FROM json_array_elements(v_messages) AS m WHERE json_typeof(m.value) <> 'object') THEN
        RAISE EXCEPTION 'each message of the replacement must be a JSON object' USING ERRCODE = 'CS019';
    END IF;
    IF p_record.kind IN ('rewind', 'clear') AND (
        json_array_length(v_messages) > 0 OR p_record.tokens_after > 0 OR (p_record.kind = 'clear' AND p_record.start_seq > 1)
    ) THEN
        RAISE EXCEPTION 'a rewind or a clear must leave nothing in the view, and a clear must begin at seq 1'
            USING ERRCODE = 'CS019';
    END IF;
    IF EXISTS (
        SELECT FROM json_array_elements(v_messages) AS m WHERE m.value ->> 'role' IN ('system', 'developer')
    ) THEN
        IF p_record.kind <> 'truncation' OR NOT EXISTS (
            SELECT FROM compaction_store.messages AS m
            WHERE m.thread_uid = p_record.thread_uid AND m.seq BETWEEN p_record.start_seq AND p_record.end_seq
                AND m.role IN ('system', 'developer')
        ) THEN
            RAISE EXCEPTION 'the replacement must have a system message only if the span has one'
                USING ERRCODE = 'CS019';
        END IF;
    END IF;
END
$$;
