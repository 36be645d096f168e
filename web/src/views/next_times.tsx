import { nextTimes } from '../model/cron';
import { capital, sentence } from '../model/format';
import { Moment } from '../parts/text';

export const zone = (): string => Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC';

const SHOWN = 3;
const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const SHORT = DAYS.map((day) => day.slice(0, 3).toLowerCase());

const isNumber = (text: string) => /^\d+$/.test(text);
const two = (text: string) => text.padStart(2, '0');
const past = (minute: string) => (Number(minute) ? `, ${minute} minutes past` : '');

/** A cron expression in words; itself where it is one that few people write. */
export function cronWords(cron: string): string {
  const [minute = '', hour = '', day = '', month = '', weekday = '', more] = cron.trim().split(/\s+/);
  if (more !== undefined || month !== '*') return cron;
  const anyDay = day === '*' && weekday === '*';
  const step = (text: string) => /^\*\/(\d+)$/.exec(text)?.[1];
  if (anyDay && hour === '*') {
    if (minute === '*') return 'every minute';
    if (step(minute)) return `every ${step(minute)} minutes`;
    return isNumber(minute) ? `every hour${past(minute)}` : cron;
  }
  if (!isNumber(minute)) return cron;
  if (anyDay && step(hour)) return `every ${step(hour)} hours${past(minute)}`;
  if (!isNumber(hour)) return cron;
  const time = `at ${two(hour)}:${two(minute)}`;
  if (anyDay) return `every day ${time}`;
  if (day === '*') {
    if (/^(1-5|mon-fri)$/i.test(weekday)) return `on weekdays ${time}`;
    const days = weekday
      .split(',')
      .map((one) => DAYS[isNumber(one) ? Number(one) % 7 : SHORT.indexOf(one.toLowerCase())]);
    return days.every(Boolean) ? `on ${days.map((one) => `${one}s`).join(', ')} ${time}` : cron;
  }
  return weekday === '*' && isNumber(day) ? `on day ${day} of each month ${time}` : cron;
}

/** When a cron expression comes next, in this browser's own zone. */
export function NextTimes({ cron }: { cron: string }) {
  const times = nextTimes(cron, SHOWN);
  if (!times) return <>In {zone()}.</>;
  if (times.length === 0) return <>This date never occurs.</>;
  const words = cronWords(cron);
  return (
    <>
      {words !== cron && `${sentence(capital(words))} `}
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
