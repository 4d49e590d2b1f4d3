-- Returns how many integers a multirange has.
CREATE FUNCTION compaction_store.size(p_numbers int8multirange) RETURNS bigint
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(sum(upper(r) - lower(r)), 0)::bigint FROM unnest(p_numbers) AS r
$$;
