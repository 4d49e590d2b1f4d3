-- Raises an error if a document breaks a rule of docs/integrity.md, section 2. p_kind is payload, meta, metadata,
-- body or receipt.
CREATE FUNCTION compaction_store.refuse_bad_document(p_kind text, p_text text) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_levels integer := CASE p_kind WHEN 'body' THEN 210 ELSE 200 END;
    v_most integer := CASE p_kind WHEN 'payload' THEN 16777216 WHEN 'body' THEN 16777216 WHEN 'receipt' THEN 65536 ELSE 8192 END;
    v_size integer := octet_length(p_text);
    v_brackets text;
BEGIN
    IF v_size > v_most THEN
        RAISE EXCEPTION 'the % must be at most % bytes long', p_kind, v_most USING ERRCODE = 'CS019';
    END IF;
    IF json_typeof(p_text::json) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'the % must be a JSON object', p_kind USING ERRCODE = 'CS019';
    END IF;
    IF v_size - octet_length(replace(replace(p_text, '{', ''), '[', '')) > v_levels THEN
        -- Each pass removes the innermost level.
        v_brackets := translate(
            regexp_replace(compaction_store.outside_strings(p_text), '[^][{}]+', '', 'g'), '{}', '[]'
        );
        FOR i IN 1 .. v_levels LOOP
            EXIT WHEN v_brackets = '';
            v_brackets := replace(v_brackets, '[]', '');
        END LOOP;
        IF v_brackets <> '' THEN
            RAISE EXCEPTION 'the % must nest at most % levels deep', p_kind, v_levels USING ERRCODE = 'CS019';
        END IF;
    END IF;
    -- Python refuses to parse integers of more than 4300 digits.
    IF v_size > 4300 THEN
        IF EXISTS (
            SELECT FROM regexp_matches(
                compaction_store.outside_strings(p_text), '[-+.0-9eE]*[0-9]{255}[-+.0-9eE]*', 'g'
            ) AS n (numbers)
            WHERE octet_length(ltrim(n.numbers[1], '-')) > 4300 AND n.numbers[1] !~ '[.eE]'
        ) THEN
            RAISE EXCEPTION 'the % must not have an integer of more than 4300 digits', p_kind USING ERRCODE = 'CS019';
        END IF;
    END IF;
    IF p_kind NOT IN ('payload', 'receipt') THEN
        IF compaction_store.has_name_twice(p_text) THEN
            RAISE EXCEPTION 'the % must not have a name twice in one object', p_kind USING ERRCODE = 'CS019';
        END IF;
    END IF;
END
$$;
