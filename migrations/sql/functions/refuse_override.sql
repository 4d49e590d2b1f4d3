-- Raises an error if a call does what only a custodian may do, and the caller may not end a hold. An eraser alone works
-- within the holds and terms that a custodian sets.
CREATE FUNCTION compaction_store.refuse_override(
    p_insist boolean, p_what text DEFAULT 'override a hold or a retention'::text
) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_insist AND NOT compaction_store.caller_may('record_event') THEN
        RAISE EXCEPTION 'only a custodian may %: grant this login compaction_store_custodian', p_what
            USING ERRCODE = 'CS024';
    END IF;
END
$$;
