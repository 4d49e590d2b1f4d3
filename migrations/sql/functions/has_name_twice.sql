-- Returns whether any object in a JSON text has a duplicate name. jsonb drops duplicates, so a text with a duplicate
-- has more colons than its jsonb. Postgres 15 has no IS JSON WITH UNIQUE KEYS.
CREATE FUNCTION compaction_store.has_name_twice(p_text text) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_text text;
    v_unique text;
BEGIN
    -- Both texts have the same colons inside strings, unless a colon is written as an escape.
    IF strpos(p_text, E'\\u003') = 0 THEN
        BEGIN
            v_unique := p_text::jsonb;
            RETURN octet_length(p_text) - octet_length(replace(p_text, ':', ''))
                <> octet_length(v_unique) - octet_length(replace(v_unique, ':', ''));
        EXCEPTION WHEN untranslatable_character OR invalid_text_representation OR numeric_value_out_of_range THEN
            NULL;
        END;
    END IF;
    -- jsonb refuses NUL, lone surrogates and huge numbers, which json allows. Replace them; numbers become 0.
    SELECT string_agg(
        CASE WHEN p.i % 2 = 1 THEN regexp_replace(p.part, '-?[0-9][-+.0-9eE]*', '0', 'g') ELSE p.part END,
        '"' ORDER BY p.i
    ) INTO v_text
    FROM string_to_table(
        replace(replace(compaction_store.parsable(p_text), E'\\\\', E'\\u005c'), E'\\"', E'\\u0022'), '"'
    ) WITH ORDINALITY AS p (part, i);
    v_unique := compaction_store.outside_strings((v_text::jsonb)::text);
    v_text := compaction_store.outside_strings(v_text);
    RETURN octet_length(v_text) - octet_length(replace(v_text, ':', ''))
        <> octet_length(v_unique) - octet_length(replace(v_unique, ':', ''));
END
$$;
