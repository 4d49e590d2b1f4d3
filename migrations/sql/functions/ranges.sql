-- Formats ranges of integers as JSON, such as [[1,3],[7,7]].
CREATE FUNCTION compaction_store.ranges(p_numbers int8multirange) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT '[' || COALESCE(
        pg_catalog.string_agg(pg_catalog.format('[%s,%s]', lower(r), upper(r) - 1), ',' ORDER BY lower(r)), ''
    ) || ']'
    FROM pg_catalog.unnest(p_numbers) AS r
$$;
