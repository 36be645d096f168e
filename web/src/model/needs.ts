import type { Work } from '../api/client';

/** Whether a person wants to see it again only later. */
export const isSnoozed = (work: Work, now: number): boolean =>
  !!work.snoozed_until && Date.parse(work.snoozed_until) > now;
