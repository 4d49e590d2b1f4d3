-- Rewrites a JSON text so that Postgres can decode its strings. Postgres refuses NUL and lone surrogates, so each is
-- replaced by a random text that nobody can have written before. Two keys that are equal stay equal, even if they are
-- escaped differently.
CREATE FUNCTION compaction_store.parsable(p_text text) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_mark text;
    v_text text;
    v_escape text;
BEGIN
    IF strpos(p_text, E'\\u') = 0 THEN
        RETURN p_text;
    END IF;
    v_mark := ' ' || gen_random_uuid();
    -- Afterwards no backslash is escaped by another backslash, so every backslash begins an escape.
    v_text := replace(p_text, E'\\\\', E'\\u005c');
    FOR v_escape IN
        SELECT DISTINCT m[1] FROM regexp_matches(
            v_text, E'(\\\\u[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2})', 'g'
        ) AS m
    LOOP
        v_text := replace(v_text, v_escape, ('"' || v_escape || '"')::json #>> '{}');
    END LOOP;
    FOR v_escape IN
        SELECT DISTINCT m[1] FROM regexp_matches(v_text, E'(\\\\u0000|\\\\u[dD][89a-fA-F][0-9a-fA-F]{2})', 'g') AS m
    LOOP
        v_text := replace(v_text, v_escape, v_mark || lower(substr(v_escape, 3)));
    END LOOP;
    RETURN v_text;
END
$$;
