-- Removes the strings from a JSON text. Brackets, commas, colons, numbers and keywords remain.
CREATE FUNCTION compaction_store.outside_strings(p_text text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$
    SELECT pg_catalog.regexp_replace(
        pg_catalog.replace(pg_catalog.replace(p_text, E'\\\\', ''), E'\\"', ''), '"[^"]*"', '', 'g'
    )
$$;
