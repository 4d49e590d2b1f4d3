-- Returns the end of a retention from the start of its event's body, or NULL if the body has no valid time there.
CREATE FUNCTION compaction_store.retained_until(p_body text) RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN substring(
        p_body FROM '^[{]"until":"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}Z)"[,}]'
    )::timestamptz;
EXCEPTION WHEN datetime_field_overflow OR invalid_datetime_format THEN
    RETURN NULL;
END
$$;
