-- Does the work of refuse_bad_message for a message that its expression cannot judge: scans the text, and parses it only
-- if the scan cannot decide. Returns true.
CREATE FUNCTION compaction_store.refuse_bad_unusual_message(p_payload text, p_role text, p_meta text) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_size integer := octet_length(p_payload);
    v_bytes bytea := convert_to(p_payload, 'UTF8');
    v_is_fine boolean := left(p_payload, 1) = '{' AND v_size <= 16777216;
    v_digits integer := 0;
    v_role json;
BEGIN
    -- More than 200 levels need more than 200 opening brackets. An integer of over 4,300 digits has a digit at each of
    -- four positions that are 1,000 bytes apart.
    IF v_size > 400 THEN
        v_is_fine := v_is_fine AND v_size - octet_length(replace(replace(p_payload, '{', ''), '[', '')) <= 200;
    END IF;
    IF v_size > 4300 THEN
        FOR i IN 0 .. v_size - 1 BY 1000 LOOP
            v_digits := CASE WHEN get_byte(v_bytes, i) BETWEEN 48 AND 57 THEN v_digits + 1 ELSE 0 END;
            v_is_fine := v_is_fine AND v_digits < 4;
        END LOOP;
    END IF;
    IF v_is_fine IS NOT TRUE THEN
        PERFORM compaction_store.refuse_bad_document('payload', p_payload);
    END IF;
    -- No parser is needed if a usual role comes first and "role" occurs nowhere else. A "role" that is written with
    -- escapes contains \u006 or \u007.
    IF p_role IN ('user', 'assistant', 'tool', 'system', 'developer') THEN
        v_is_fine := starts_with(p_payload, '{"role":"' || p_role || '"')
            AND position('"role"'::bytea IN substring(v_bytes FROM 9)) = 0;
    ELSE
        v_is_fine := p_role IS NULL AND position('"role"'::bytea IN v_bytes) = 0;
    END IF;
    IF v_is_fine THEN
        v_is_fine := position(E'\\\\u00'::bytea IN v_bytes) = 0 OR p_payload !~ E'\\\\u00[67]';
    END IF;
    IF NOT v_is_fine THEN
        v_role := compaction_store.parsable(p_payload)::json -> 'role';
        IF p_role IS DISTINCT FROM (
            CASE
                WHEN json_typeof(v_role) = 'string' AND (v_role #>> '{}') ~ '^[!-~]{1,64}$' COLLATE "C"
                    THEN v_role #>> '{}'
            END
        ) THEN
            RAISE EXCEPTION 'p_role must be the role in the payload' USING ERRCODE = 'CS019';
        END IF;
    END IF;
    IF p_meta IS NOT NULL THEN
        PERFORM compaction_store.refuse_bad_document('meta', p_meta);
    END IF;
    RETURN true;
END
$$;
