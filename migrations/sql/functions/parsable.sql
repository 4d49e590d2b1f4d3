-- Rewrites a JSON text so that Postgres can decode its strings. Postgres refuses NUL and lone surrogates, so each is
-- replaced by a random text that nobody can have written before. Two keys that are equal stay equal, even if they are
-- escaped differently. The time grows only in proportion to the text.
CREATE FUNCTION compaction_store.parsable(p_text text) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_mark text;
    v_text text;
BEGIN
    IF strpos(p_text, E'\\u') = 0 THEN
        RETURN p_text;
    END IF;
    v_mark := ' ' || gen_random_uuid();
    -- Afterwards no backslash is escaped by another backslash, so every backslash begins an escape.
    v_text := replace(p_text, E'\\\\', E'\\u005c');
    IF v_text !~ E'\\\\u(0000|[dD][89a-fA-F])' THEN
        RETURN v_text;
    END IF;
    -- The longer alternative wins, so a pair of surrogates is found whole. It stays, and only a semicolon follows the
    -- mark after it.
    v_text := regexp_replace(
        v_text,
        E'(\\\\u[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2})'
            '|\\\\u(0000|[dD][89a-fA-F][0-9a-fA-F]{2})',
        E'\\1' || v_mark || E'\\2;', 'g'
    );
    RETURN (
        SELECT string_agg(
            CASE
                WHEN p.i = 1 THEN p.part
                WHEN starts_with(p.part, ';') THEN substr(p.part, 2)
                ELSE v_mark || lower(left(p.part, 4)) || substr(p.part, 6)
            END, '' ORDER BY p.i
        )
        FROM string_to_table(v_text, v_mark) WITH ORDINALITY AS p (part, i)
    );
END
$$;
