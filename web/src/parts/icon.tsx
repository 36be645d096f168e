const PATHS = {
  down: 'm4.5 6.2 3.5 3.6 3.5-3.6',
  right: 'm6 4 4 4-4 4',
  plus: 'M8 3.2v9.6M3.2 8h9.6',
  now: 'M2.5 8h2.6l1.6-4.2 2.7 8.4L11 8h2.5',
  work: 'M3 4.2h10M3 8h10M3 11.8h6.5',
  schedules: 'M8 4.6V8l2.3 1.7M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12Z',
  knowledge:
    'M8 4.2v9M8 4.2C6.6 3.2 4.6 3 2.4 3v9c2.2 0 4.2.2 5.6 1.2 1.4-1 3.4-1.2 5.6-1.2V3c-2.2 0-4.2.2-5.6 1.2Z',
  usage: 'M3 13V8.5M6.4 13V3.5M9.8 13V6.5M13.2 13v-2.5',
  system: 'M2.8 4.6h10.4M2.8 11.4h10.4M5.6 3v3.2M10.4 9.8V13',
  theme:
    'M8 10.6a2.6 2.6 0 1 0 0-5.2 2.6 2.6 0 0 0 0 5.2ZM8 1.8v1.4M8 12.8v1.4M14.2 8h-1.4M3.2 8H1.8M12.4 3.6l-1 1M4.6 11.4l-1 1M12.4 12.4l-1-1M4.6 4.6l-1-1',
  help: 'M6.2 6.2a1.9 1.9 0 1 1 2.7 1.7c-.6.3-.9.7-.9 1.4M8 11.6h.01',
  search: 'M7.2 12a4.8 4.8 0 1 0 0-9.6 4.8 4.8 0 0 0 0 9.6ZM13.4 13.4l-2.7-2.7',
  close: 'm4.4 4.4 7.2 7.2m0-7.2-7.2 7.2',
  more: 'M3.6 8h.01M8 8h.01M12.4 8h.01',
  copy: 'M5.4 5.4V2.8h7.8v7.8h-2.6M2.8 5.4h7.8v7.8H2.8z',
  pause: 'M5.6 3.6v8.8M10.4 3.6v8.8',
  merge: 'M4.5 13V3m0 2.2c0 4 2.4 4.6 6.6 4.8M9 7.8l2.2 2.2L9 12.2',
  folder: 'M2.2 4.2h4l1.4 1.6h6.2v7H2.2z',
  file: 'M4 2.2h5l3 3v8.6H4zM9 2.2v3h3',
  warn: 'M8 2.6 14 13H2zM8 6.6v3M8 11.2h.01',
} as const;

export type IconName = keyof typeof PATHS;

export const Icon = ({ name, className = '' }: { name: IconName; className?: string }) => (
  <svg className={`i ${className}`} viewBox="0 0 16 16" aria-hidden="true">
    <path d={PATHS[name]} />
  </svg>
);
