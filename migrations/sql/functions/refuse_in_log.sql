-- Raises an error for a message, a record or an event of a thread that would be stored in the log of a tenant. A
-- constraint of the heads calls this function, so that an append pays only for a comparison.
CREATE FUNCTION compaction_store.refuse_in_log() RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'the log of a tenant has only events that the store records itself' USING ERRCODE = 'CS018';
END
$$;
