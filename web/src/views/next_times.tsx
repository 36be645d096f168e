import { nextTimes } from '../model/cron';
import { Moment } from '../parts/text';

export const zone = (): string => Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC';

const SHOWN = 3;

/** When a cron expression comes next, in this browser's own zone. */
export function NextTimes({ cron }: { cron: string }) {
  const times = nextTimes(cron, SHOWN);
  if (!times) return <>In {zone()}.</>;
  if (times.length === 0) return <>This never comes.</>;
  return (
    <>
      Next{' '}
      {times.map((time, place) => (
        <span key={time.toISOString()}>
          {place > 0 && ', '}
          {time.toLocaleDateString('en-GB', { weekday: 'short' })} <Moment at={time.toISOString()} />
        </span>
      ))}
      , in {zone()}.
    </>
  );
}
