-- The end of a retention from its event's body, which begins with it: fields are never taken out of json here.
CREATE FUNCTION compaction_store.retained_until(p_body text) RETURNS timestamptz
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT substring(
        p_body FROM '^[{]"until":"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}Z)"[,}]'
    )::timestamptz
$$;
